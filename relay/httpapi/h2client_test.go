package httpapi_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"net"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Client is an HTTP/2 client that sends the frames that a test wants. It reads only while a test waits for an answer.
type h2Client struct {
	t      testing.TB
	conn   *tls.Conn
	closed <-chan struct{} // closed when the server closes the connection
	out    *http2.Framer
	in     *http2.Framer

	block    bytes.Buffer // what encoder has written
	encoder  *hpack.Encoder
	last     uint32 // the last stream that the client has opened
	silent   bool   // the client answers neither PING nor SETTINGS
	settings map[http2.SettingID]uint32
	answers  map[uint32]*h2Answer
	goAway   *http2.ErrCode // nil: the server has sent no GOAWAY
	err      error          // why reading has ended
}

// h2Answer is what the client has received on a stream.
type h2Answer struct {
	status string
	header map[string]string
	body   bytes.Buffer
	ended  bool           // with END_STREAM
	reset  *http2.ErrCode // nil: there was no RST_STREAM
}

// dialH2 connects from an address, and sends the preface and these settings.
func (l *pipeListener) dialH2(t testing.TB, from string, settings ...http2.Setting) *h2Client {
	t.Helper()
	c, closed := l.dialWatched(t, from)
	return newH2(t, c, closed, settings...)
}

// newH2 makes a handshake over c, and sends the preface and these settings. See dialWatched for closed.
func newH2(t testing.TB, c net.Conn, closed <-chan struct{}, settings ...http2.Setting) *h2Client {
	t.Helper()
	h := newMuteH2(t, c, closed)
	if _, err := h.conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	h.check(h.out.WriteSettings(settings...))
	return h
}

func (h *h2Client) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// newMuteH2 makes a handshake over c, and sends nothing after it.
func newMuteH2(t testing.TB, c net.Conn, closed <-chan struct{}) *h2Client {
	t.Helper()
	h := &h2Client{t: t, conn: handshake(t, c, "h2"), closed: closed, settings: map[http2.SettingID]uint32{},
		answers: map[uint32]*h2Answer{}}
	if h.conn.ConnectionState().NegotiatedProtocol != "h2" {
		t.Fatal("the relay does not speak HTTP/2")
	}
	h.out, h.in = http2.NewFramer(h.conn, nil), http2.NewFramer(nil, h.conn)
	h.in.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.encoder = hpack.NewEncoder(&h.block)
	return h
}

// encode returns a header block. fields are names and values.
func (h *h2Client) encode(fields ...string) []byte {
	h.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		h.check(h.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	return h.block.Bytes()
}

// requestBlock returns the header block of a request.
func (h *h2Client) requestBlock(method, path string, fields ...string) []byte {
	pseudo := []string{":method", method, ":scheme", "https", ":authority", "localhost", ":path", path}
	return h.encode(append(pseudo, fields...)...)
}

// open sends the header of a request and returns its stream. end: the request has no body.
func (h *h2Client) open(end bool, method, path string, fields ...string) uint32 {
	h.t.Helper()
	h.last += 2
	id := h.last - 1
	h.check(h.out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: end,
		BlockFragment: h.requestBlock(method, path, fields...)}))
	return id
}

// sendHeader sends a header block in as many frames as it needs. It stops if the relay closes the connection.
func (h *h2Client) sendHeader(id uint32, block []byte) {
	const most = 16 << 10
	part, rest := block[:min(len(block), most)], block[min(len(block), most):]
	err := h.out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: true, EndHeaders: len(rest) == 0,
		BlockFragment: part})
	for err == nil && len(rest) > 0 {
		part, rest = rest[:min(len(rest), most)], rest[min(len(rest), most):]
		err = h.out.WriteContinuation(id, len(rest) == 0, part)
	}
}

func (h *h2Client) get(path string, fields ...string) uint32 {
	h.t.Helper()
	return h.open(true, "GET", path, fields...)
}

// post sends a request with a body.
func (h *h2Client) post(path string, body []byte) uint32 {
	h.t.Helper()
	id := h.open(false, "POST", path)
	h.check(h.out.WriteData(id, true, body))
	return id
}

// next reads a frame, and answers it if HTTP/2 requires that. It returns false if the connection has ended.
func (h *h2Client) next() bool {
	frame, err := h.in.ReadFrame()
	if err != nil {
		h.err = err
		return false
	}
	a := h.answers[frame.Header().StreamID]
	if a == nil {
		a = &h2Answer{header: map[string]string{}}
		h.answers[frame.Header().StreamID] = a
	}
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		_ = f.ForeachSetting(func(s http2.Setting) error { h.settings[s.ID] = s.Val; return nil })
		if !f.IsAck() && !h.silent {
			err = h.out.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() && !h.silent {
			err = h.out.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		a.status, a.ended = f.PseudoValue("status"), f.StreamEnded()
		for _, field := range f.RegularFields() {
			a.header[field.Name] = field.Value
		}
	case *http2.DataFrame:
		a.body.Write(f.Data())
		a.ended = a.ended || f.StreamEnded()
	case *http2.RSTStreamFrame:
		a.reset = &f.ErrCode
	case *http2.GoAwayFrame:
		h.goAway = &f.ErrCode
	}
	if err != nil {
		h.err = err
	}
	return err == nil
}

// answer reads until a stream has ended, or the connection.
func (h *h2Client) answer(id uint32) *h2Answer {
	for h.answers[id] == nil || !h.answers[id].ended && h.answers[id].reset == nil {
		if !h.next() {
			break
		}
	}
	if h.answers[id] == nil {
		return &h2Answer{}
	}
	return h.answers[id]
}

// drain reads until the connection has ended.
func (h *h2Client) drain() {
	for h.next() {
	}
}

// exchange lets the settings of both sides arrive.
func (h *h2Client) exchange() {
	h.t.Helper()
	if a := h.answer(h.get("/health")); a.status != "200" {
		h.t.Fatalf("/health: %+v, %v", a, h.err)
	}
}

// want checks an answer with a complete body.
func (a *h2Answer) want(t testing.TB, status, text string) {
	t.Helper()
	body := a.body.String()
	if a.status != status || !a.ended || a.reset != nil && *a.reset != http2.ErrCodeNo || !strings.Contains(body, text) {
		t.Errorf("answered %+v %s, want %s with %s", a, body, status, text)
	}
}

// wantLimit checks that an answer is a refusal of this limit.
func (a *h2Answer) wantLimit(t testing.TB, limit string) {
	t.Helper()
	a.want(t, "429", `"error":"RATE_LIMITED"`)
	var body struct{ Details struct{ Limit string } }
	err := json.Unmarshal(a.body.Bytes(), &body)
	if err != nil || body.Details.Limit != limit || a.header["retry-after"] == "" {
		t.Errorf("%s %v with %v, want %s", a.body.String(), err, a.header, limit)
	}
}

// wantReset checks that the server has reset a stream.
func (a *h2Answer) wantReset(t testing.TB, codes ...http2.ErrCode) {
	t.Helper()
	if a.reset == nil {
		t.Errorf("answered %+v %s, want RST_STREAM", a, a.body.String())
		return
	}
	for _, code := range codes {
		if *a.reset == code {
			return
		}
	}
	t.Errorf("reset with %v, want one of %v", *a.reset, codes)
}
