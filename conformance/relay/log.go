package relay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"golang.org/x/mod/sumdb/tlog"
)

// The steps of proofChecks.

// provedLog is what the well-known document says about the log of a relay.
type provedLog struct {
	origin  proof.Origin
	start   string        // the text of leaf 0
	publish time.Duration // how often a checkpoint is published
}

// target returns the target of a part of the log.
func (l provedLog) target(part string) string {
	return fmt.Sprintf("/log/%08x/%s", l.origin.Epoch, part)
}

// ifProofs returns a check that runs only if the relay announces proofs.
func ifProofs(run func(*relayProbe, provedLog)) func(*relayProbe) {
	return ifFeature("proofs", func(p *relayProbe, document kit.Answer) {
		log := document.Object("log")
		p.Expect("the member log with origin, which is the DID of the relay, / and an epoch; start and publishSeconds")
		origin, err := proof.ParseOrigin(log.Text("origin"))
		var seconds float64
		if err == nil {
			err = json.Unmarshal(log.Members["publishSeconds"], &seconds)
		}
		if err != nil || string(origin.DID) != document.Text("did") || log.Text("start") == "" || seconds <= 0 {
			p.Failf("%v: %s", err, document)
		}
		publish := time.Duration(min(seconds, 86400) * float64(time.Second))
		run(p, provedLog{origin, log.Text("start"), publish})
	})
}

// provedMessage is a message with a valid proof.
type provedMessage struct {
	kit.SignedMessage
	*proof.Proof
	leaf proof.Leaf
}

// postProved posts a new message. The relay must accept and prove it.
func (p *relayProbe) postProved(log provedLog, signed kit.SignedMessage) provedMessage {
	return p.checkReceipt(p.Post(signed.What, signed.Body), signed, log)
}

// checkReceipt ends the check unless a is the receipt of a new message, with a valid proof.
func (p *relayProbe) checkReceipt(a kit.Answer, signed kit.SignedMessage, log provedLog) provedMessage {
	p.CheckAccepted(a, signed)
	return p.checkProof(a.Text("proof"), signed, log)
}

// checkProof ends the check unless text is the valid proof of a message by the relay with this log.
func (p *relayProbe) checkProof(text string, signed kit.SignedMessage, log provedLog) provedMessage {
	p.Expect("a valid proof of %s in the log %s", signed.ID, log.origin)
	e, err := envelope.Parse(signed.Body, kit.MaxAnswer)
	if err != nil {
		panic(err) // cannot happen: the relay has accepted it
	}
	parsed, err := proof.Parse(text)
	if err != nil {
		p.Failf("the text of the proof is wrong: %v: %s", err, kit.Excerpt([]byte(text), 400))
	}
	verified, err := parsed.Verify()
	if err == nil {
		err = verified.CheckMessage(e, log.origin.DID)
	}
	if err != nil {
		p.Failf("%v: %s", err, kit.Excerpt([]byte(text), 2000))
	}
	if verified.Origin != log.origin {
		p.Failf("the proof is of the log %s", verified.Origin)
	}
	return provedMessage{signed, parsed, verified.Leaf}
}

// checkNoProof ends the check if an answer, or the result of a line, has a proof.
func (p *relayProbe) checkNoProof(a kit.Answer) {
	p.Expect("no member proof")
	if _, present := a.Members["proof"]; present {
		p.Failf("the answer has a proof: %s", a)
	}
}

func proofTarget(sender kit.Actor, id string) string {
	return "/proofs" + kit.Query("sender", sender.DID(), "id", id)
}

// readProof reads the proof of a message by sender.
func (p *relayProbe) readProof(log provedLog, sender kit.Actor, signed kit.SignedMessage) provedMessage {
	return p.checkProof(p.checkText(p.Call("", http.MethodGet, proofTarget(sender, signed.ID), nil, nil, 0)), signed, log)
}

// checkSameLeaf ends the check unless the proof that was read and the proof in the receipt are of the same leaf.
func (p *relayProbe) checkSameLeaf(read, receipt provedMessage) {
	p.Expect("the leaf of the receipt, at its index %d: %q", receipt.Index, receipt.Extra)
	if read.Extra != receipt.Extra || read.Index != receipt.Index {
		p.Failf("another leaf, at the index %d: %q", read.Index, read.Extra)
	}
}

// checkText ends the check unless a is a text, which it returns.
func (p *relayProbe) checkText(a kit.Answer) string {
	p.Expect("status 200 with the Content-Type text/plain; charset=utf-8 and Cache-Control no-store")
	kind, parameters, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if a.Err != nil || a.Status != http.StatusOK || err != nil || kind != "text/plain" ||
		!strings.EqualFold(parameters["charset"], "utf-8") || a.Header.Get("Cache-Control") != "no-store" {
		p.Failf("Content-Type %q, Cache-Control %q, %s", a.Header.Get("Content-Type"), a.Header.Get("Cache-Control"), a)
	}
	return string(a.Body)
}

// published returns the published checkpoint.
func (p *relayProbe) published(log provedLog) proof.Checkpoint {
	text := p.checkText(p.Call("", http.MethodGet, log.target("checkpoint"), nil, nil, 0))
	p.Expect("a checkpoint of the log %s, signed by the relay", log.origin)
	c, err := proof.ParseCheckpoint(text)
	if err == nil {
		_, err = c.Verify()
	}
	if err != nil || c.Origin != log.origin {
		p.Failf("%v: %s", err, kit.Excerpt([]byte(text), 600))
	}
	return c
}

const (
	tileHeight = 8 // of tiles (C2SP tlog-tiles)
	tileWidth  = 1 << tileHeight
)

// tile reads a tile.
func (p *relayProbe) tile(log provedLog, t tlog.Tile) []byte {
	path := strings.TrimPrefix(t.Path(), fmt.Sprintf("tile/%d/", t.H))
	a := p.Call("", http.MethodGet, log.target("tile/"+path), nil, nil, 0)
	p.Expect("status 200 with the Content-Type application/octet-stream, %d hashes, and Cache-Control for ever", t.W)
	cache := a.Header.Get("Cache-Control")
	if a.Err != nil || a.Status != http.StatusOK || a.Header.Get("Content-Type") != "application/octet-stream" ||
		len(a.Body) != t.W*tlog.HashSize || !strings.Contains(cache, "immutable") {
		p.Failf("Content-Type %q, Cache-Control %q, %d bytes, %s", a.Header.Get("Content-Type"), cache, len(a.Body), a)
	}
	return bytes.Clone(a.Body)
}

// logTiles reads tiles for package tlog. If the relay does not have one, the check ends.
type logTiles struct {
	p   *relayProbe
	log provedLog
}

func (t logTiles) Height() int { return tileHeight }

func (t logTiles) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, tile := range tiles {
		data[i] = t.p.tile(t.log, tile)
	}
	return data, nil
}

func (t logTiles) SaveTiles([]tlog.Tile, [][]byte) {}

// treeOf returns the hashes of the tree of a checkpoint. It reads them from the tiles. If those have another root, it
// returns an error.
func (p *relayProbe) treeOf(log provedLog, c proof.Checkpoint) tlog.HashReader {
	return tlog.TileHashReader(tlog.Tree{N: c.Size, Hash: c.Root}, logTiles{p, log})
}
