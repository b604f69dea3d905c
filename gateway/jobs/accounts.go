package jobs

import (
	"net/http"
	"strings"
	"sync"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file creates and shows principals and their accounts.

// newPrincipal is the principal of a request that may create one. Update may run the operation twice. So the key is made
// before it, and admit counts the request once.
type newPrincipal struct {
	g     *Gateway
	r     *request
	key   string
	admit func() error
}

func (g *Gateway) newPrincipal(r *request) *newPrincipal {
	return &newPrincipal{g, r, gateway.NewKey(gateway.Principal),
		sync.OnceValue(func() error { return g.principals.Take(r.from, g.Relay.Now) })}
}

// find returns the caller's principal. If the caller has none yet, find creates one: with a new key, or for the
// caller's DID. key is the new key; empty: no key was made.
func (n *newPrincipal) find(o *gateway.Op) (p principal, key string, err error) {
	c := n.r.caller
	if c.did != "" {
		// It may have been created since the request came.
		if p, err = principalByDID(o, c.did); err != nil || p.n != 0 {
			return p, "", err
		}
	} else if c.kind == aPrincipal {
		p, err = principalByNumber(o, c.principal)
		return p, "", err
	}
	if err := n.admit(); err != nil {
		return p, "", err
	}
	p = principal{did: c.did, created: o.Now}
	if p.n, err = gateway.Next(o.ExtTx, principalCounter); err != nil {
		return p, "", err
	}
	if err := insertPrincipal(o.ExtTx, p); err != nil || c.did != "" {
		return p, "", err
	}
	return p, n.key, gateway.AddKey(o.ExtTx, n.key, gateway.Holder{Kind: gateway.Principal, Owner: p.n})
}

// mayOwn checks that the caller may have an account with this name.
func (c caller) mayOwn(id string) error {
	if strings.HasPrefix(id, "did:") && id != string(c.did) {
		return forbidden("an owner_id that begins with did: is for the holder of that DID, who must sign the request")
	}
	return nil
}

// createOwner stores a new account with the balance 0.
func createOwner(o *gateway.Op, p principal, id string) (owner, error) {
	count, err := o.Number("SELECT COUNT(*) FROM jobs_owner WHERE principal = ?", p.n)
	if err != nil {
		return owner{}, err
	}
	if count >= maxOwners {
		return owner{}, limitReached(limitOwners, "a principal can have %d accounts, and this one has them; use one of these",
			maxOwners)
	}
	a := owner{id: id, principal: p.n}
	if a.n, err = gateway.Next(o.ExtTx, ownerCounter); err != nil {
		return a, err
	}
	if err := insertOwner(o.ExtTx, a); err != nil {
		return a, err
	}
	return a, addFigures(o.ExtTx, figures{accounts: 1})
}

// open pays the initial balance of an account, once.
func (g *Gateway) open(o *gateway.Op, p principal, a owner, wanted credits.Amount) (owner, error) {
	supply, err := g.supply(o)
	if err != nil {
		return a, err
	}
	a.opened = true
	if err := updateOwner(o.ExtTx, a); err != nil {
		return a, err
	}
	amount := max(0, min(wanted, g.options.Initial-p.issued, supply))
	if amount == 0 {
		return a, nil
	}
	p.issued += amount
	if err := updatePrincipal(o.ExtTx, p); err != nil {
		return a, err
	}
	if _, err := g.issueTo(o, a.n, amount, kindInitial, ""); err != nil {
		return a, err
	}
	return ownerByNumber(o, a.n)
}

// usualBalance is the initial_balance of a request that has none.
const usualBalance = 100 * credits.One

// accountAnswer is the answer with an account.
type accountAnswer struct {
	OwnerID string         `json:"owner_id"`
	Balance credits.Amount `json:"balance"`
	APIKey  string         `json:"api_key,omitempty"` // only of a new principal
}

// ownerTaken is the refusal of an owner_id that another principal has.
func ownerTaken() error {
	return conflict("this owner_id is taken; choose another one, or send the key of the principal that has it")
}

// postAccount is the handler of POST /accounts.
func (g *Gateway) postAccount(r *request) error {
	if r.caller.kind == theOperator {
		return r.needPrincipal()
	}
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	id := f.ownerID("owner_id")
	wanted := usualBalance
	if f.has("initial_balance") {
		wanted = f.amount("initial_balance", true)
	}
	if err := f.err(); err != nil {
		return err
	}
	if err := r.caller.mayOwn(id); err != nil {
		return err
	}
	created := g.newPrincipal(r)
	var answer accountAnswer
	err = g.Update(r.detached(), r.from, func(o *gateway.Op) error {
		a, err := ownerByID(o, id)
		if err != nil {
			return err
		}
		c, err := r.caller.now(o)
		if err != nil {
			return err
		}
		if a.n != 0 && !c.owns(a.principal) {
			return ownerTaken()
		}
		p, key, err := created.find(o)
		if err != nil {
			return err
		}
		if a.n == 0 {
			if a, err = createOwner(o, p, id); err != nil {
				return err
			}
		}
		if !a.opened {
			if a, err = g.open(o, p, a, wanted); err != nil {
				return err
			}
		}
		answer = accountAnswer{a.id, a.balance, key}
		return nil
	})
	if err != nil {
		return err
	}
	return r.answer(http.StatusCreated, answer)
}

// getAccount is the handler of GET /accounts/{id}.
func (g *Gateway) getAccount(r *request) error {
	if r.caller.kind == anyone {
		return unauthorized()
	}
	var a owner
	if err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		if id := r.path("id"); ownerForm.MatchString(id) {
			a, err = ownerByID(q, id)
		}
		return err
	}); err != nil {
		return err
	}
	switch {
	case a.n == 0 || a.principal == 0:
		return notFound("there is no account with this owner_id")
	case r.caller.kind != theOperator && !r.caller.owns(a.principal):
		return forbidden("only the principal of an account and the operator see its balance")
	}
	return r.answer(http.StatusOK, accountAnswer{OwnerID: a.id, Balance: a.balance})
}

// postGrant is the handler of POST /operator/grants.
func (g *Gateway) postGrant(r *request) error {
	switch r.caller.kind {
	case anyone:
		return unauthorized()
	case aPrincipal:
		return forbidden("only the operator grants credits; the key is in the file operator.key of the relay")
	}
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	id, to, amount := f.uuid("grant_id"), f.ownerID("owner_id"), f.amount("amount", true)
	if amount == 0 && f.err() == nil {
		f.fail("amount", "must be above 0")
	}
	if err := f.err(); err != nil {
		return err
	}
	var shown shownRecord
	err = g.Update(r.detached(), r.from, func(o *gateway.Op) error {
		a, err := ownerByID(o, to)
		if err != nil {
			return err
		}
		if a.n == 0 || a.principal == 0 {
			return notFound("there is no account with this owner_id")
		}
		made, err := g.grant(o, a, amount, id)
		if err != nil {
			return err
		}
		shown, err = showRecord(o, made)
		return err
	})
	if err != nil {
		return err
	}
	return r.answer(http.StatusCreated, shown)
}

// grant issues credits to an account, unless it has done so for this id.
func (g *Gateway) grant(o *gateway.Op, to owner, amount credits.Amount, id string) (record, error) {
	if id != "" {
		earlier, err := recordByID(o, id)
		if err != nil {
			return earlier, err
		}
		if earlier.n != 0 {
			if earlier.kind == kindGrant && earlier.payee == to.n && earlier.amount == amount {
				return earlier, nil
			}
			return earlier, conflict("this grant_id was used for something else; use a new one for another grant")
		}
	}
	supply, err := g.supply(o)
	if err != nil {
		return record{}, err
	}
	if amount > supply {
		return record{}, conflict("only %v more credits can be issued; the operator can raise --jobs-supply", supply)
	}
	return g.issueTo(o, to.n, amount, kindGrant, id)
}
