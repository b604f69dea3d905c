package bench

import (
	"context"
	"crypto/ed25519"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// outcome is the result of a post.
type outcome uint8

const (
	unsent   outcome = iota
	unknown          // there was no answer, or the answer does not say whether the envelope was stored
	accepted         // the envelope must be stored
	refused          // the envelope must not be stored
)

// record is the data kept for each envelope. The connection that posts the envelope owns outcome. The poll on its inbox
// owns delivered. The reader after the run owns stored.
type record struct {
	sig       [ed25519.SignatureSize]byte
	ms        int64        // the envelope's ts, in milliseconds since 1970
	due       int64        // when the post was due, in nanoseconds since the run began; set before sent
	sent      atomic.Int64 // when the post was sent, in nanoseconds since the run began; 0: not yet
	outcome   outcome
	delivered uint8 // how often it was delivered: 0 or 1
	stored    uint8 // how often it was read back: 0 to 3
}

// send notes that the envelope is posted now, and when that was due. Both are times since the run began.
func (r *record) send(due, now time.Duration) {
	r.outcome, r.due = unknown, int64(due)
	r.sent.Store(int64(now))
}

// chunkSize is how many records are allocated at a time.
const chunkSize = 1 << 16

// stock contains the envelopes of a run, each identified by its number. It signs them in batches before they are
// posted.
type stock struct {
	templates
	ids
	senders []didkey.Key
	readers []didkey.Key
	inboxes []didkey.DID // of the readers

	chunks [maxPosts/chunkSize + 16]atomic.Pointer[[chunkSize]record] // sign adds chunks; posters and polls read them
	signed int                                                        // all lower numbers are signed; owned by sign
	next   atomic.Int64                                               // the number to post next
}

// newStock makes the keys of a run with options o, and signs its first envelope. In a run with polls, each poll has its
// own inbox. In any other run the senders' inboxes are used.
func newStock(ctx context.Context, to target, o Options) (*stock, error) {
	s := &stock{ids: newIDs()}
	var err error
	if s.templates, err = newTemplates(to, o.Body, o.Pretty); err != nil {
		return nil, err
	}
	s.senders = newKeys(ctx, o.Senders)
	s.readers = s.senders
	if o.delivers() {
		s.readers = newKeys(ctx, o.Pollers)
	}
	for _, key := range s.readers {
		s.inboxes = append(s.inboxes, key.DID())
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.sign(ctx, 1, new(atomic.Int64)); err != nil {
		return nil, err
	}
	return s, s.check(s.values(0, new(values)))
}

// newKeys makes n keys on all cores. The keys sign only the envelopes and reads of a run, so math/rand is good enough.
func newKeys(ctx context.Context, n int) []didkey.Key {
	keys := make([]didkey.Key, n)
	parallelFor(ctx, 0, n, func(i int) {
		var seed [ed25519.SeedSize]byte
		for j := range seed {
			seed[j] = byte(rand.Uint32())
		}
		key, err := didkey.FromSeed(seed[:])
		if err != nil {
			panic(err) // a seed of the right size always gives a key
		}
		keys[i] = key
	})
	return keys
}

// parallelFor calls f with each number from lo to hi-1, on all cores. When ctx ends, it starts no more calls.
func parallelFor(ctx context.Context, lo, hi int, f func(int)) {
	var next atomic.Int64
	next.Store(int64(lo))
	var working sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		working.Go(func() {
			for i := int(next.Add(1) - 1); i < hi && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				f(i)
			}
		})
	}
	working.Wait()
}

func (s *stock) record(n int) *record { return &s.chunks[n/chunkSize].Load()[n%chunkSize] }

func (s *stock) sender(n int) didkey.Key {
	a, _ := s.choices(n)
	return s.senders[int(a)%len(s.senders)]
}

// inbox returns the index of the inbox that envelope n is sent to.
func (s *stock) inbox(n int) int {
	_, b := s.choices(n)
	return int(b) % len(s.inboxes)
}

// maxAge is how old an envelope may be when it is posted. It is one minute less than the maximum age that a relay
// accepts.
const maxAge = 4 * time.Minute

// sign makes sure that want signed envelopes are ready to post. If the remaining envelopes are older than half of
// maxAge, sign skips them and signs new ones. It adds the number of envelopes that it signs to count. It returns ctx's
// error.
func (s *stock) sign(ctx context.Context, want int, count *atomic.Int64) error {
	next := min(int(s.next.Load()), s.signed) // posters may have taken numbers beyond signed
	now := time.Now()
	if next < s.signed && now.Sub(time.UnixMilli(s.record(next).ms)) > maxAge/2 {
		next = s.signed
	}
	s.next.Store(int64(next))
	until := min(next+want, len(s.chunks)*chunkSize)
	for i := range s.chunks[:(until+chunkSize-1)/chunkSize] {
		if s.chunks[i].Load() == nil {
			s.chunks[i].Store(new([chunkSize]record))
		}
	}
	parallelFor(ctx, s.signed, until, func(n int) {
		s.record(n).ms = time.Now().UnixMilli()
		sig, err := s.sender(n).Sign(s.unsigned.fill(nil, s.values(n, new(values))))
		if err != nil {
			panic(err) // a key in memory always signs
		}
		copy(s.record(n).sig[:], sig)
		count.Add(1)
	})
	if err := ctx.Err(); err != nil {
		return err // some of the new envelopes may have no signature, so signed is not changed
	}
	s.signed = max(s.signed, until)
	return nil
}

// values fills v with the values of envelope n, in v's memory, and returns v.
func (s *stock) values(n int, v *values) *values {
	record := s.record(n)
	v[partID] = s.ids.append(v[partID][:0], n, record.ms)
	v[partTS] = appendTS(v[partTS][:0], record.ms)
	v[partSender] = append(v[partSender][:0], s.sender(n).DID()...)
	v[partRecipient] = append(v[partRecipient][:0], s.inboxes[s.inbox(n)]...)
	v[partSig] = appendSig(v[partSig][:0], record.sig[:])
	return v
}

// find returns the number of an envelope that the relay returned. It uses the id, which is the first member of the
// canonical form.
func (s *stock) find(canonical []byte) (n int, ok bool) {
	const before = len(`{"id":"msg_`)
	if len(canonical) < before+26 {
		return 0, false
	}
	n, ok = s.number(canonical[before : before+26])
	// signed belongs to sign and cannot be read here. So check that n's chunk exists.
	return n, ok && n/chunkSize < len(s.chunks) && s.chunks[n/chunkSize].Load() != nil
}
