package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// The identities of the chains, as in the example of RELAYS §2, and those who disturb.
var (
	homeA, homeB     = newKey(1), newKey(5)
	chainClient      = newKey(2)
	chainAgent       = newKey(3)
	rivalAgent       = newKey(4)
	otherChainClient = newKey(6)
)

// home is the meta.home of a message.
func home(k key, url string) string {
	return fmt.Sprintf(`"home":{"did":"%s","url":"%s"}`, k.did, url)
}

// chain has the drafts of a chain. Each message but the first gets the hash of the message before it as meta.re, then
// its change is made, and then it is signed. So a change breaks one link only.
type chain struct {
	drafts  []draft
	changes map[int]func(draft) draft
}

// newChain returns REQUEST, OFFER, ACCEPT and RESULT. Their ids count from first, and their seconds from start. The
// REQUEST has more members of meta.
func newChain(number, first, start int, home, more string) chain {
	var c chain
	for i, typ := range []string{"REQUEST", "OFFER", "ACCEPT", "RESULT"} {
		from, to := chainAgent, chainClient
		if typ == "REQUEST" || typ == "ACCEPT" {
			from, to = to, from
		}
		d := msg(from, typ, fmt.Sprint("msg_", first+i), start+i).to(to)
		d = d.with("thread", fmt.Sprintf(`{"id":"thread_%d"}`, number)).with("meta", `{"ttl":86400,`+home+more+`}`)
		payload := strings.Replace(payloads[typ], "req_1", fmt.Sprint("req_", number), 1)
		if typ == "REQUEST" {
			payload, more = fmt.Sprintf(`{"intent":"translation.en_zh","request_id":"req_%d"}`, number), ""
		}
		c.drafts = append(c.drafts, d.with("payload", payload))
	}
	return c
}

// The chains of the example: the first at home a, and its continuation at home b.
func firstChain() chain { return newChain(1, 1, 0, home(homeA, "https://a.example"), "") }

func continued(root string) chain {
	return newChain(2, 5, 60, home(homeB, "https://b.example"), fmt.Sprintf(`,"continues":"%s"`, root))
}

func nextChain() chain { return continued(contentHash(firstChain().forms(1)[0])) }

// with returns c with a change of one message.
func (c chain) with(i int, change func(draft) draft) chain {
	c.changes = maps.Clone(c.changes)
	if c.changes == nil {
		c.changes = map[int]func(draft) draft{}
	}
	before := c.changes[i]
	c.changes[i] = func(d draft) draft {
		if before != nil {
			d = before(d)
		}
		return change(d)
	}
	return c
}

// each returns c with a change of all messages.
func (c chain) each(change func(draft) draft) chain {
	for i := range c.drafts {
		c = c.with(i, change)
	}
	return c
}

// forms returns the first n messages, signed.
func (c chain) forms(n int) (forms []json.RawMessage) {
	for i, d := range c.drafts[:n] {
		if i > 0 {
			d = inMeta(`"ttl":86400`, fmt.Sprintf(`"ttl":86400,"re":"%s"`, contentHash(forms[i-1])))(d)
		}
		if change := c.changes[i]; change != nil {
			d = change(d)
		}
		forms = append(forms, signedForm(d))
	}
	return forms
}

// replaced returns a change that replaces a text in a member, which must have it.
func replaced(member, old, new string) func(draft) draft {
	return func(d draft) draft {
		value := d.value(member)
		if !strings.Contains(value, old) {
			panic(fmt.Sprintf("%s has no %s", value, old))
		}
		return d.with(member, strings.Replace(value, old, new, 1))
	}
}

func inMeta(old, new string) func(draft) draft { return replaced("meta", old, new) }

// re returns a change of meta.re. An empty hash removes it.
func re(hash string) func(draft) draft {
	return func(d draft) draft {
		var meta map[string]json.RawMessage
		if err := json.Unmarshal([]byte(d.value("meta")), &meta); err != nil {
			panic(err)
		}
		if delete(meta, "re"); hash != "" {
			meta["re"] = json.RawMessage(quote(hash))
		}
		text, err := json.Marshal(meta)
		if err != nil {
			panic(err)
		}
		return d.with("meta", string(text))
	}
}

// by returns a change of the sender, who also signs.
func by(k key) func(draft) draft {
	return func(d draft) draft {
		d.key = k
		return d.with("sender", party(k.did))
	}
}

// signedBy returns a change of the signing key. The sender stays the same, so the signature does not match the sender.
func signedBy(k key) func(draft) draft {
	return func(d draft) draft {
		d.key = k
		return d
	}
}

func to(k key) func(draft) draft { return func(d draft) draft { return d.to(k) } }

// offeredBy returns c with another agent.
func (c chain) offeredBy(k key) chain { return c.with(1, by(k)).with(2, to(k)).with(3, by(k)) }

// open returns c with a REQUEST to everybody.
func (c chain) open() chain { return c.with(0, with("recipient", "")) }

// list returns a JSON list of messages.
func list(messages []json.RawMessage) []byte {
	text, err := json.Marshal(messages)
	if err != nil {
		panic(err)
	}
	return text
}

// sealedText stands for a sealed payload. Whether it opens does not matter.
var sealedText = quote("v1." + base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{7}, 64)))

// sealed is a change that hides all members of a payload but those that stay clear.
func sealed(clear string) func(draft) draft {
	return with("payload", `{`+clear+`,"sealed":`+sealedText+`}`)
}

// relaysVectors returns all vectors of relays.json.
func relaysVectors() []testvectors.RelaysVector {
	return slicesOf(goodChains(), badChains(), goodAccepts(), badAccepts())
}

// goodChains are chains that prove a deal.
func goodChains() (vectors []testvectors.RelaysVector) {
	usd := &testvectors.Price{Amount: 0.005, Currency: "USD"}
	good := func(name string, text []byte, n int, home key, price *testvectors.Price) {
		v := testvectors.RelaysVector{Name: name, Chain: text, Expect: testvectors.Accept, Client: chainClient.did,
			Agent: chainAgent.did, Home: home.did, Intent: "translation.en_zh", Price: price, Accepted: n > 2}
		var messages []json.RawMessage
		if err := json.Unmarshal(text, &messages); err != nil {
			panic(err)
		}
		for _, m := range messages {
			v.Hashes = append(v.Hashes, contentHash(canonical(m)))
		}
		if n == 4 {
			v.Status = "success"
		}
		vectors = append(vectors, v)
	}
	first, next := firstChain(), nextChain()
	good("chain-example-at-a", list(first.forms(3)), 3, homeA, usd)
	good("chain-example-at-b", list(next.forms(4)), 4, homeB, usd)
	good("chain-of-two", list(first.forms(2)), 2, homeA, usd)
	good("chain-of-four", list(first.forms(4)), 4, homeA, usd)
	good("chain-for-everybody", list(first.each(with("recipient", "")).forms(4)), 4, homeA, usd)
	good("chain-without-thread", list(first.each(with("thread", "")).forms(4)), 4, homeA, usd)
	good("chain-without-price", list(first.with(1, with("payload", `{"request_id":"req_1"}`)).forms(3)), 3, homeA, nil)
	good("chain-for-nothing", list(first.with(1, replaced("payload", "0.005", "0")).forms(3)), 3, homeA,
		&testvectors.Price{Currency: "USD"})
	for _, c := range []struct {
		name, price string
		want        *testvectors.Price
	}{
		{"in-words", `"cheap"`, nil},
		{"null", `null`, nil},
		{"without-amount", `{"currency":"USD"}`, nil},
		{"with-an-amount-in-words", `{"amount":"0.005","currency":"USD"}`, nil},
		{"with-a-currency-in-figures", `{"amount":0.005,"currency":840}`, nil},
		{"in-no-currency", `{"amount":0.005}`, &testvectors.Price{Amount: 0.005}},
		{"in-null", `{"amount":0.005,"currency":null}`, &testvectors.Price{Amount: 0.005}},
		{"in-another-spelling", `{"Amount":1,"amount":0.005,"Currency":"EUR","currency":"USD"}`, usd},
	} {
		offer := with("payload", `{"request_id":"req_1","price":`+c.price+`}`)
		good("chain-with-a-price-"+c.name, list(first.with(1, offer).forms(3)), 3, homeA, c.want)
	}
	good("chain-sealed", list(first.with(0, sealed(`"request_id":"req_1","intent":"translation.en_zh"`)).
		with(1, sealed(`"request_id":"req_1"`)).with(2, sealed(`"request_id":"req_1"`)).
		with(3, sealed(`"request_id":"req_1","status":"success"`)).forms(4)), 4, homeA, nil)
	good("chain-of-a-request-with-re", list(first.with(0, re(strings.Repeat("0a", 32))).forms(2)), 2, homeA, usd)
	good("chain-respelled", []byte(respelled(string(list(first.forms(4))))), 4, homeA, usd)
	return vectors
}

// badChains are texts that prove no deal.
func badChains() (vectors []testvectors.RelaysVector) {
	refuse := func(name, reason string, text []byte) {
		vectors = append(vectors, testvectors.RelaysVector{Name: "chain-" + name, Chain: text, Expect: testvectors.Reject,
			Reason: reason})
	}
	chainForms(refuse)
	brokenLinks(refuse)
	wrongParties(refuse)
	return vectors
}

// chainForms are texts that are no list of two to four messages in their order.
func chainForms(refuse refuseFunc) {
	four := firstChain().forms(4)
	refuse("of-nothing", "The list is empty.", []byte("[]"))
	refuse("of-one", "A REQUEST alone is no deal.", list(four[:1]))
	refuse("of-five", "A chain has at most four messages.", list(append(firstChain().forms(4), four[3])))
	refuse("not-a-list", "The text is not a list.", four[0])
	refuse("of-texts", "The messages are strings.", []byte(`["a","b"]`))
	refuse("of-null", "A message is null.", []byte(`[null,null]`))
	refuse("with-a-member-twice", "A member is there twice.",
		bytes.Replace(list(four), []byte(`"version":"1.0"`), []byte(`"version":"1.0","version":"1.0"`), 1))
	refuse("in-another-order", "The OFFER stands before the REQUEST.", list([]json.RawMessage{four[1], four[0]}))
	refuse("without-offer", "The OFFER is missing.", list([]json.RawMessage{four[0], four[2], four[3]}))
	refuse("without-accept", "The ACCEPT is missing.", list([]json.RawMessage{four[0], four[1], four[3]}))
	refuse("with-an-error", "An ERROR delivers nothing.", list(firstChain().with(3, func(d draft) draft {
		return d.with("type", `"ERROR"`).with("payload", payloads["ERROR"])
	}).forms(4)))
	refuse("with-a-cancel", "A CANCEL accepts nothing.", list(firstChain().with(2, func(d draft) draft {
		return d.with("type", `"CANCEL"`).with("payload", payloads["CANCEL"])
	}).forms(3)))
	for i, typ := range []string{"request", "offer", "accept", "result"} {
		refuse("with-a-wrong-signature-of-"+typ, "A signature is wrong.",
			list(firstChain().with(i, signedBy(rivalAgent)).forms(max(2, i+1))))
	}
}

// brokenLinks are chains with a message that does not answer the one before it.
func brokenLinks(refuse refuseFunc) {
	first := firstChain()
	forms := first.forms(4)
	a := home(homeA, "https://a.example")
	for i, typ := range []string{"offer", "accept", "result"} {
		refuse(typ+"-without-re", "A message does not say what it answers.", list(first.with(i+1, re("")).forms(i+2)))
		refuse(typ+"-of-another-message", "A message answers one that is not in the chain.",
			list(first.with(i+1, re(contentHash(nextChain().forms(4)[i]))).forms(i+2)))
		refuse(typ+"-at-another-home", "A message names another home than the REQUEST.",
			list(first.with(i+1, inMeta(homeA.did, homeB.did)).forms(i+2)))
		refuse(typ+"-without-home", "A message names no home.", list(first.with(i+1, inMeta(","+a, "")).forms(i+2)))
		refuse(typ+"-of-another-thread", "A message is of another thread.",
			list(first.with(i+1, with("thread", `{"id":"thread_2"}`)).forms(i+2)))
		refuse(typ+"-of-another-request-id", "A message has another request_id.",
			list(first.with(i+1, replaced("payload", "req_1", "req_2")).forms(i+2)))
	}
	refuse("accept-of-the-request", "The ACCEPT answers the REQUEST.",
		list(first.with(2, re(contentHash(forms[0]))).forms(3)))
	unsigned := contentHash(canonical([]byte(first.drafts[0].text())))
	refuse("offer-of-unsigned-bytes", "The hash is that of the REQUEST without its signature.",
		list(first.with(1, re(unsigned)).forms(2)))
	refuse("re-in-upper-case", "The hash is in upper case.",
		list(first.with(1, re(strings.ToUpper(contentHash(forms[0])))).forms(2)))
	refuse("re-too-short", "The hash has 62 digits.", list(first.with(1, re(contentHash(forms[0])[2:])).forms(2)))
	refuse("home-at-another-url", "The OFFER names another url.",
		list(first.with(1, inMeta("https://a.example", "https://b.example")).forms(2)))
	refuse("without-home", "The REQUEST names no home.", list(first.each(inMeta(","+a, "")).forms(4)))
	for _, c := range []struct{ name, home string }{
		{"with-a-third-member", strings.Replace(a, `}`, `,"x":1}`, 1)},
		{"with-a-path", home(homeA, "https://a.example/x")},
		{"with-a-user", home(homeA, "https://u@a.example")},
		{"of-another-scheme", home(homeA, "ftp://a.example")},
		{"of-another-method", strings.Replace(a, "did:key:", "did:web:", 1)},
		{"that-is-a-text", `"home":"https://a.example"`},
		{"that-is-null", `"home":null`},
		{"without-url", `"home":{"did":"` + homeA.did + `"}`},
	} {
		refuse("home-"+c.name, "The home has another form.", list(first.each(inMeta(a, c.home)).forms(2)))
	}
	refuse("offer-that-continues", "Only a REQUEST continues a job.",
		list(first.with(1, inMeta(`"ttl"`, `"continues":"`+contentHash(forms[0])+`","ttl"`)).forms(2)))
	refuse("continues-in-words", "What the REQUEST continues is no hash.",
		list(first.with(0, inMeta(`"ttl"`, `"continues":"msg_1","ttl"`)).forms(2)))
	refuse("without-request-id", "The RESULT has no request_id.",
		list(first.with(3, replaced("payload", `"request_id":"req_1",`, ``)).forms(4)))
}

// wrongParties are chains with a message by or for somebody else.
func wrongParties(refuse refuseFunc) {
	first := firstChain()
	refuse("offer-by-another-agent", "The REQUEST names another agent.", list(first.with(1, by(rivalAgent)).forms(2)))
	refuse("offer-by-the-client", "The client offers to itself.", list(first.open().with(1, by(chainClient)).forms(2)))
	refuse("offer-for-another-client", "The OFFER is for another client.",
		list(first.with(1, to(otherChainClient)).forms(2)))
	refuse("accept-by-another-client", "The ACCEPT is by another client.",
		list(first.with(2, by(otherChainClient)).forms(3)))
	refuse("accept-by-the-agent", "The agent accepts its own offer.",
		list(first.with(2, by(chainAgent)).with(2, to(chainClient)).forms(3)))
	refuse("accept-for-another-agent", "The ACCEPT is for another agent than that of the OFFER.",
		list(first.open().with(2, to(rivalAgent)).forms(3)))
	refuse("result-by-another-agent", "The RESULT is by another agent.",
		list(first.open().with(3, by(rivalAgent)).forms(4)))
	refuse("result-for-another-client", "The RESULT is for another client.",
		list(first.with(3, to(otherChainClient)).forms(4)))
	refuse("recipient-no-key", "A recipient is no did:key.",
		list(first.open().with(1, with("recipient", party("did:key:z6Mk"))).forms(2)))
}
