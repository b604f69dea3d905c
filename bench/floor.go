package bench

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// floorLine is what ServeFloor writes when it takes requests. The server's URL follows.
const floorLine = "floor listening on "

// FloorCommand returns the command that makes the given agora binary a floor. See Options.Floor.
func FloorCommand(agora string) []string {
	return []string{agora, "bench", "--serve-floor", "http://127.0.0.1:0"}
}

// ServeFloor runs the floor: a net/http server that does the least that any relay on net/http must do for a post. It
// reads the body, verifies its signature with crypto/ed25519 and answers with a receipt. It parses no JSON, checks no
// field and stores nothing. The body must be an envelope of this package in its canonical form, because then the signed
// bytes are the body without its sig.
//
// The server listens at the host and port of baseURL, writes its address to out and runs until in ends. It does not
// listen to signals: the bench that started it closes in when it needs it no more, and so does the end of that bench.
func ServeFloor(baseURL string, in io.Reader, out io.Writer) error {
	to, err := parseTarget(baseURL)
	if err != nil {
		return err
	}
	if !onLoopback(to.host) {
		return fmt.Errorf("the floor listens on a loopback address only, not on %s", to.host)
	}
	listener, err := net.Listen("tcp", to.address)
	if err != nil {
		return err
	}
	// Any server needs bounds on time. These are those of the relay.
	server := &http.Server{
		Handler:           http.HandlerFunc(answerFloor),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       75 * time.Second,
	}
	if _, err := fmt.Fprintf(out, "%shttp://%s\n", floorLine, listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	_, err = io.Copy(io.Discard, in)
	err = errors.Join(err, server.Close())
	if failed := <-ended; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}

// maxFloorBody is more than the largest envelope of a run, in bytes.
const maxFloorBody = 128 << 10

// floorBuffers holds buffers for bodies, as *[]byte.
var floorBuffers = sync.Pool{New: func() any { return new([]byte) }}

var floorContent = []string{"application/json"}

// answerFloor answers one post: 200 with a receipt, 401 if the signature is wrong, 400 if the body is no envelope.
func answerFloor(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = floorContent
	if r.Method != http.MethodPost || r.ContentLength < 0 || r.ContentLength > maxFloorBody {
		refuseFloor(w, http.StatusBadRequest)
		return
	}
	buffer := floorBuffers.Get().(*[]byte)
	defer floorBuffers.Put(buffer)
	if int64(cap(*buffer)) < r.ContentLength {
		*buffer = make([]byte, r.ContentLength)
	}
	body := (*buffer)[:r.ContentLength]
	if _, err := io.ReadFull(r.Body, body); err != nil {
		refuseFloor(w, http.StatusBadRequest)
		return
	}
	post, ok := parseFloorPost(body)
	if !ok {
		refuseFloor(w, http.StatusBadRequest)
		return
	}
	if !ed25519.Verify(post.key, post.signed, post.sig[:]) {
		refuseFloor(w, http.StatusUnauthorized)
		return
	}
	// The form is that of the relay's receipt, so the generator reads both in the same way.
	var space [128]byte
	receipt := append(space[:0], `{"ok":true,"id":"msg_`...)
	receipt = append(receipt, post.id[:]...)
	receipt = append(receipt, `","cursor":"","duplicate":false,"expiresAt":""}`...)
	_, _ = w.Write(receipt) // a client that has left needs no answer
}

func refuseFloor(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"ok":false}`) // a client that has left needs no answer
}

// floorPost is what the floor takes from a body.
type floorPost struct {
	id     [26]byte
	key    ed25519.PublicKey
	sig    [ed25519.SignatureSize]byte
	signed []byte // what the signature covers, in the body's memory
}

var (
	idMember     = []byte(`{"id":"msg_`)
	senderMember = []byte(`,"sender":{"id":"`)
	sigMember    = []byte(`,"sig":"`)
)

// parseFloorPost finds the parts of a canonical envelope of this package and cuts the sig out of body. Members are sorted
// in the canonical form: id comes first, and sender comes before sig.
func parseFloorPost(body []byte) (p floorPost, ok bool) {
	rest, ok := bytes.CutPrefix(body, idMember)
	if !ok || copy(p.id[:], rest) != len(p.id) {
		return p, false
	}
	sender := bytes.Index(body, senderMember)
	if sender < 0 {
		return p, false
	}
	sender += len(senderMember)
	cut := bytes.Index(body[sender:], sigMember)
	if cut < len(marks[partSender]) {
		return p, false
	}
	cut += sender
	sig := body[cut+len(sigMember):]
	if len(sig) <= len(marks[partSig]) || sig[len(marks[partSig])] != '"' {
		return p, false
	}
	if n, err := base64.RawURLEncoding.Decode(p.sig[:], sig[:len(marks[partSig])]); err != nil || n != len(p.sig) {
		return p, false
	}
	if p.key = didkey.DID(body[sender : sender+len(marks[partSender])]).PublicKey(); p.key == nil {
		return p, false
	}
	p.signed = append(body[:cut], sig[len(marks[partSig])+1:]...)
	return p, true
}
