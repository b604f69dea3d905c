package httpapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/relay"
)

// File is a document that stays the same while the program runs, in the codings in which it is sent.
type File struct {
	contentType   string
	plain, zipped encoded // zipped has no body if gzip makes the file larger
}

// encoded is a file in one coding.
type encoded struct {
	coding string // the header Content-Encoding; empty: none
	body   []byte
	tag    string // the ETag, in quotes
}

// NewFile returns a File. contentType is its header Content-Type.
func NewFile(contentType string, content []byte) (*File, error) {
	f := &File{contentType: contentType, plain: newEncoded("", content)}
	var small bytes.Buffer
	zip, err := gzip.NewWriterLevel(&small, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := zip.Write(content); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	if small.Len() < len(content) {
		f.zipped = newEncoded("gzip", small.Bytes())
	}
	return f, nil
}

// newEncoded gives body a tag. Each version and each coding has its own.
func newEncoded(coding string, body []byte) encoded { return encoded{coding, body, Tag(body)} }

// Tag returns an ETag, in quotes. It depends on all bytes of the body.
func Tag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`
}

// Serve answers GET and HEAD. It is a Handler. A browser keeps the file, and asks each time whether it has changed.
func (f *File) Serve(w http.ResponseWriter, r *http.Request, _ relay.Peer) error {
	ExtendWrite(w)
	header, best := w.Header(), f.plain
	header.Add("Vary", "Accept-Encoding")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Content-Type-Options", "nosniff")
	if f.zipped.body != nil && acceptsGzip(r.Header) {
		best = f.zipped
	}
	header.Set("ETag", best.tag)
	if HasTag(r.Header, best.tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	if best.coding != "" {
		header.Set("Content-Encoding", best.coding)
	}
	header.Set("Content-Type", f.contentType)
	header.Set("Content-Length", strconv.Itoa(len(best.body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(best.body) // an error means that the client has left
	}
	return nil
}

// Methods returns the methods of a Route that serves the file.
func (f *File) Methods() map[string]Handler {
	return map[string]Handler{http.MethodGet: f.Serve, http.MethodHead: f.Serve}
}

// acceptsGzip reports whether the client takes gzip (RFC 9110 §12.5.3). Only the value 0 of q refuses.
func acceptsGzip(header http.Header) bool {
	for entry := range strings.SplitSeq(strings.Join(header.Values("Accept-Encoding"), ","), ",") {
		name, parameter, _ := strings.Cut(entry, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, given := strings.CutPrefix(strings.ToLower(strings.TrimSpace(parameter)), "q=")
		value, err := strconv.ParseFloat(q, 64)
		return !given || err == nil && value > 0
	}
	return false
}

// HasTag reports whether If-None-Match names the tag, or any (RFC 9110 §13.1.2). The tags of Tag have no commas.
func HasTag(header http.Header, tag string) bool {
	for entry := range strings.SplitSeq(strings.Join(header.Values("If-None-Match"), ","), ",") {
		if entry = strings.TrimSpace(entry); entry == "*" || strings.TrimPrefix(entry, "W/") == tag {
			return true
		}
	}
	return false
}
