package channel

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// Limits of GET /channels/{channel}/events.
const (
	maxPage     = 200
	defaultPage = 50
	maxWait     = 60 // seconds
)

// eventsQuery has the parameters of GET /channels/{channel}/events.
type eventsQuery struct {
	after, limit int64
	wait         time.Duration
}

func parseEventsQuery(r *http.Request) (q eventsQuery, err error) {
	p, err := gateway.Parameters(r, "after", "limit", "wait")
	if err != nil {
		return q, err
	}
	var wait int64
	for _, number := range []struct {
		name                string
		value               *int64
		least, most, absent int64
	}{{"after", &q.after, 0, 1<<63 - 1, 0}, {"limit", &q.limit, 1, maxPage, defaultPage}, {"wait", &wait, 0, maxWait, 0}} {
		text, given := p[number.name]
		if *number.value = number.absent; !given {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil || int64(n) < number.least || int64(n) > number.most {
			return q, gateway.Invalid("%s must be a whole number from %d to %d", number.name, number.least, number.most)
		}
		*number.value = int64(n)
	}
	q.wait = time.Duration(wait) * time.Second
	return q, nil
}

// getEvents is the handler of GET /channels/{channel}/events. If there is no event yet, it waits for one.
func (g *Gateway) getEvents(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
	c, err := g.caller(r, from, reader)
	if err != nil {
		return err
	}
	query, err := parseEventsQuery(r)
	if err != nil {
		return err
	}
	var stream *relay.Stream
	if query.wait > 0 {
		if stream, err = g.Relay.OpenStream(from, ""); err != nil {
			return err
		}
		defer stream.Close()
	}
	timeout := time.NewTimer(query.wait)
	defer timeout.Stop()
	room := g.news.Follow(c.room.n)
	defer room.Close()
	for over := query.wait == 0; ; {
		news := room.Next() // before the search, so that no event is missed
		has, err := g.hasEvents(r, from, c, query)
		if err != nil {
			return err
		}
		if has || over {
			return g.writeEvents(w, r, from, c, query)
		}
		select {
		case <-news:
		case <-timeout.C:
			over = true
		case <-stream.Ended():
			over = true // if the client was banned, the next read refuses it
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// hasEvents reports whether a page has an event. It checks the caller's key again, because that may have ended while the
// request waited.
func (g *Gateway) hasEvents(r *http.Request, from relay.Peer, c caller, query eventsQuery) (has bool, err error) {
	err = g.Relay.View(r.Context(), from, func(q relay.Querier) error {
		if _, err := g.findCaller(q, c.key, c.room.id, reader); err != nil {
			return err
		}
		next, err := gateway.Number(q, "SELECT seq FROM channel_event WHERE channel = ? AND seq > ? ORDER BY seq LIMIT 1",
			c.room.n, query.after)
		has = next != 0
		return err
	})
	return has, err
}

// writeEvents answers a request with a page of events.
func (g *Gateway) writeEvents(w http.ResponseWriter, r *http.Request, from relay.Peer, c caller, query eventsQuery) error {
	type position struct {
		seq, left int64
		size      int // of the events so far, in bytes
	}
	at := position{seq: query.after, left: query.limit}
	return writeList(w, "events", gateway.List(r.Context(), g.Core, from, at,
		func(q relay.Querier, next position, p *gateway.Piece) (position, bool, error) {
			full := false
			err := q.Query(func(scan gateway.Scanner) error {
				var e event
				if err := scan(e.fields()...); err != nil {
					return err
				}
				if full = p.Full(); full || next.size > 0 && next.size+len(e.body) > maxPageBytes {
					return errPageFull
				}
				p.Add(e.shown())
				next.seq, next.left, next.size = e.seq, next.left-1, next.size+len(e.body)
				return nil
			}, "SELECT "+eventColumns+" FROM channel_event WHERE channel = ? AND seq > ? ORDER BY seq LIMIT ?",
				c.room.n, next.seq, next.left)
			if errors.Is(err, errPageFull) {
				err = nil
			}
			if err == nil {
				at = next
			}
			return next, full, err
		}), func() string { return `],"cursor":` + strconv.FormatInt(at.seq, 10) + "}\n" })
}
