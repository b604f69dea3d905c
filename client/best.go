package client

import (
	"cmp"
	"math"
	"slices"
)

// Rule says which of several acceptable offers is the best one.
type Rule string

// The rules. If two offers are equally good, the one that arrived first is better.
const (
	Cheapest Rule = "cheapest" // the lowest price, then the shortest time. An offer without a price is free
	Fastest  Rule = "fastest"  // the shortest time, then the lowest price. An offer without a time comes last
	First    Rule = "first"    // the offer that arrived first
)

// Best returns the best of the offers for which acceptable returns true; ok is false if there is none. offers are in
// the order of their arrival. Only the newest offer of each agent counts, see Newest. The prices of the acceptable
// offers must have the same currency.
func (r Rule) Best(offers []Offer, acceptable func(Offer) bool) (best Offer, ok bool) {
	good := slices.DeleteFunc(Newest(offers), func(o Offer) bool { return !acceptable(o) })
	if len(good) == 0 {
		return Offer{}, false
	}
	return slices.MinFunc(good, r.compare), true // the first one, if several are equally good
}

// compare returns a negative number if a is better than b, and 0 if they are equally good.
func (r Rule) compare(a, b Offer) int {
	price, _ := a.Amount()
	other, _ := b.Amount()
	byPrice, byTime := cmp.Compare(price, other), cmp.Compare(a.seconds(), b.seconds())
	switch r {
	case Cheapest:
		return cmp.Or(byPrice, byTime)
	case Fastest:
		return cmp.Or(byTime, byPrice)
	}
	return 0
}

// Newest returns the last offer of each agent, in the order of their arrival. An ACCEPT names an agent and not an
// offer, so an earlier offer of the same agent is no longer valid.
func Newest(offers []Offer) (last []Offer) {
	for _, o := range offers {
		last = slices.DeleteFunc(last, func(earlier Offer) bool { return earlier.Agent == o.Agent })
		last = append(last, o)
	}
	return last
}

// IsOpen reports whether o is the newest open offer of its agent, as the relay claims.
func (t *Thread) IsOpen(o Offer) bool {
	for _, open := range slices.Backward(t.Offers) {
		if open.Agent == o.Agent {
			return open.ID == o.Envelope.ID
		}
	}
	return false
}

// Amount returns the amount of the price, in the currency of the price; 0 if the offer names no price. ok is false if
// there is a price that has no number as amount. Price.Amount alone does not show that, because it is 0 then.
func (o Offer) Amount() (amount float64, ok bool) {
	if o.Price == nil {
		return 0, true
	}
	var payload struct {
		Price struct {
			Amount *float64 `json:"amount"`
		} `json:"price"`
	}
	if o.Envelope != nil && (o.Envelope.DecodePayload(&payload) != nil || payload.Price.Amount == nil) {
		return 0, false
	}
	return o.Price.Amount, true
}

// seconds returns how long the work will take, as the agent claims. It is infinite if the offer does not say it.
func (o Offer) seconds() float64 {
	var payload struct {
		ETASeconds *float64 `json:"eta_seconds"`
	}
	if o.Envelope != nil && (o.Envelope.DecodePayload(&payload) != nil || payload.ETASeconds == nil) {
		return math.Inf(1)
	}
	return max(o.ETASeconds, 0)
}
