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

// floorLine begins the line that ServeFloor writes when it is ready for requests. The server's URL follows it.
const floorLine = "floor listening on "

// FloorCommand returns the command that runs the given agora binary as a floor. It is a value for Options.Floor.
func FloorCommand(agora string) []string {
	return []string{agora, "bench", "--serve-floor", "http://127.0.0.1:0"}
}

// ServeFloor runs the floor: a net/http server that does the least work that any relay on net/http must do for a post.
// It reads the body, verifies the signature with crypto/ed25519 and answers with a receipt. It parses no JSON, checks
// no field and stores nothing. The body must be an envelope of this package in its canonical form, because then the
// signed bytes are the body without its sig.
//
// The server listens at the host and port of baseURL, which must be a loopback address. It writes its address to out
// and runs until in ends. It does not react to signals. The program that started it ends it by closing in. The floor
// also ends when that program ends, because the operating system then closes in.
//
// ServeFloor returns an error if baseURL is invalid, if the server cannot listen or fails, or if in or out fails.
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
	// A server must limit how long a client may take. These are the limits of the relay.
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

// maxFloorBody is the largest body that the floor accepts, in bytes. It is larger than any envelope of a run.
const maxFloorBody = 128 << 10

// floorBuffers contains buffers for bodies, of type *[]byte.
var floorBuffers = sync.Pool{New: func() any { return new([]byte) }}

var floorContent = []string{"application/json"}

// answerFloor answers one post. It answers 200 with a receipt, 401 if the signature is wrong, or 400 if the request is
// not a post of an envelope.
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
	// The receipt has the same form as the relay's, so that the generator reads both in the same way.
	var space [128]byte
	receipt := append(space[:0], `{"ok":true,"id":"msg_`...)
	receipt = append(receipt, post.id[:]...)
	receipt = append(receipt, `","cursor":"","duplicate":false,"expiresAt":""}`...)
	_, _ = w.Write(receipt) // an error means that the client has closed the connection
}

func refuseFloor(w http.ResponseWriter, status int) {
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"ok":false}`) // an error means that the client has closed the connection
}

// floorPost is the content of a body that the floor uses.
type floorPost struct {
	id     [26]byte
	key    ed25519.PublicKey
	sig    [ed25519.SignatureSize]byte
	signed []byte // the bytes that the signature covers, in the body's memory
}

var (
	idMember     = []byte(`{"id":"msg_`)
	senderMember = []byte(`,"sender":{"id":"`)
	sigMember    = []byte(`,"sig":"`)
)

// parseFloorPost finds the id, the sender's key and the sig in a canonical envelope of this package. It removes the sig
// from body to get the signed bytes. In the canonical form the members are sorted: id comes first, and sender comes
// before sig.
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
	if cut < len(placeholders[partSender]) {
		return p, false
	}
	cut += sender
	sig := body[cut+len(sigMember):]
	if len(sig) <= len(placeholders[partSig]) || sig[len(placeholders[partSig])] != '"' {
		return p, false
	}
	if n, err := base64.RawURLEncoding.Decode(p.sig[:], sig[:len(placeholders[partSig])]); err != nil ||
		n != len(p.sig) {
		return p, false
	}
	if p.key = didkey.DID(body[sender : sender+len(placeholders[partSender])]).PublicKey(); p.key == nil {
		return p, false
	}
	p.signed = append(body[:cut], sig[len(placeholders[partSig])+1:]...)
	return p, true
}
