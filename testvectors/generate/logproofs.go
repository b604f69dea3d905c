package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// exampleMessage and exampleProof are the example of LOG §2.
const (
	exampleMessage = `{"id":"msg_3","meta":{"ttl":86400},"payload":{"request_id":"req_1"},"recipient":{"id":"did:key:z6MkvRXNYcE7MMduynWTgeKbDaT1iijDSC8pZqXZc8rHPrf2"},"sender":{"id":"did:key:z6Mko9hTggMwjSTEaJaPUfE6tqcy2xvU6BnNq3e3o8qVBiyH"},"sig":"_2jhwPxCxJTO4FeQi3HYP4-PhwUrtV3-wqu3o4IA9krfT7dwplfazCkyH1CJB96vsa8nRXkqPC0-c5WUjcd3Dw","thread":{"id":"thread_1"},"ts":"2026-02-02T12:00:02Z","type":"ACCEPT","version":"1.0"}`
	exampleProof   = `c2sp.org/tlog-proof@v1
extra YWdvcmEtbGVhZi8xCnNhbHQgRXhNVEV4TVRFeE1URXhNVEV4TVRFdwpldmVudCAwNGY2M2UyNjQxMTIzMWNlMjg1ZDllZWMwMGNmOWExMTQ3YjE5NGYyMWRkY2QyNGE3MmJjZWE2ZmU3NzVjMzE5CnJlY2VpdmVkIDIwMjYtMDItMDJUMTI6MDA6MDIuMDIwWgpyZXF1ZXN0IDYyZWVjZDM3YjQyYmQ1NmFiNTBmN2EzZjVmMDFiMzJkZTk5YTZjYzc1OWYyMTE0MTU3ZTQwMzc4OTI4MzVkMTQK
index 3
m3L6VxQw/gD2UYnLia3mOwHDXQxFUPzXtHQOqm8Ae2c=
YJHLj0GVRA0x/CDT5aIua5V0sLcuJT9UwnVFlXOgaeM=

did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX/94c3ee3d
4
sD0mBFl6Bys5CDrNI8OyhfnSFXX08msGurAUSN05ZIQ=

— did:key:z6Mkon3Necd6NkkyfoGoHxid2znGc59LU3K7mubaRcFbLfLX/94c3ee3d qqp3iUgdepVbLEsHw9mmjRw6s2UvWt/oGRRZd++rz3KJ6Phefr8W4XgWVNfTmJrii13tsLd+tHfnZOSRZ+x4OviXEA8=
— did:key:z6MkmtWtY63GQVBrpMyRJWEzsnxfsGkemu6CtMDwGTv4RYj2/witness/5e6f7081 +/sPRQAAAABpgJHFy9dyyaxxknTiy6i4HywYwWWq1XyvomtNuYFLNW5diUrNY8MSdzjUvJ6hIGjyQcc904Sude3WdUH3NIL/FWGFAg==
`
	cosignedAt = 1770033605 // seconds; five seconds after noon
)

// witnessName is the name of the witness in the other vectors.
const witnessName = "witness.example/1"

// goodProofs are the vectors of valid proofs.
func goodProofs() []testvectors.LogVector {
	l := threadLog()
	good := func(name string, l treeLog, index, size int) testvectors.LogVector {
		return testvectors.LogVector{Name: name, Proof: l.proof(index, size).text(), Expect: testvectors.Accept,
			Index: int64(index), Size: int64(size), Leaf: l.leaves[index]}
	}
	of := func(v testvectors.LogVector, message []byte) testvectors.LogVector {
		v.Message, v.Relay = message, logRelay.did
		return v
	}
	with := func(v testvectors.LogVector, change func(*proofText)) testvectors.LogVector {
		p := l.proof(int(v.Index), int(v.Size))
		change(&p)
		v.Proof = p.text()
		return v
	}
	vectors := []testvectors.LogVector{
		{Name: "example-of-the-specification", Proof: exampleProof, Message: []byte(exampleMessage), Relay: logRelay.did,
			Expect: testvectors.Accept, Index: 3, Size: 4, Leaf: "agora-leaf/1\nsalt ExMTExMTExMTExMTExMTEw\n" +
				"event 04f63e26411231ce285d9eec00cf9a1147b194f21ddcd24a72bcea6fe775c319\n" +
				"received 2026-02-02T12:00:02.020Z\n" +
				"request 62eecd37b42bd56ab50f7a3f5f01b32de99a6cc759f2114157e4037892835d14\n"},
		of(good("message", l, 3, 5), logAccept),
		good("start", l, 0, 5),
		good("start-of-a-log-with-one-leaf", l, 0, 1),
		good("last-leaf", l, 4, 5),
		good("request-unknown", l, 7, 9),
		good("larger-tree", l, 3, 14),
		good("tree-of-a-power-of-two", l, 6, 8),
	}
	largest := good("largest-log", l, 3, 5)
	largest.Proof, largest.Size = l.hugeProof(3, largestLog).text(), largestLog
	before := l.origin() + " 5 " + hashLines([]nodeHash{rootOf(l.hashes(5))})[0]
	after := treeLog{logRelay, "00000001", []string{startText(before)}}
	vectors = append(vectors, largest, good("start-after-another-log", after, 0, 1))
	for _, late := range []int{5, -5} {
		one := treeLog{logRelay, logEpoch, []string{startText("-"), leafText(9, logAccept, 2000+60_000*late, logRequest)}}
		vectors = append(vectors, of(good(fmt.Sprintf("received-%d-minutes-late", late), one, 1, 2), logAccept))
	}
	witness := []string{witnessKey(witnessName, logWitness)}
	v := with(good("cosigned", l, 3, 5), func(p *proofText) {
		p.signatures = append(p.signatures, cosigned(witnessName, logWitness, p.body, cosignedAt))
	})
	v.Witnesses, v.Cosigned = witness, []string{fmt.Sprint(witnessName, " ", cosignedAt)}
	vectors = append(vectors, v)
	v = with(v, func(p *proofText) {
		p.signatures = append([]string{cosigned(witnessName, logWitness, p.body, cosignedAt)}, p.signatures...)
	})
	v.Name = "cosigned-above-the-relay"
	vectors = append(vectors, v)
	v = good("not-cosigned", l, 3, 5)
	v.Witnesses = witness
	vectors = append(vectors, v)
	v = with(good("unknown-signatures", l, 3, 5), func(p *proofText) {
		p.signatures = append(p.signatures, cosigned("other", stranger, "x", 1), signedNote(l.origin(), stranger, "x"),
			signatureLine(l.origin(), 4, logRelay, []byte{1}),
			signatureLine("ünï.example", 9, stranger, bytes.Repeat([]byte{2}, 3000)))
	})
	v.Witnesses = witness
	return append(vectors, v)
}

// badProof is a proof of the ACCEPT with one fault.
type badProof struct {
	name, reason string
	change       func(p *proofText)
}

// rewritten returns a change of the whole text.
func rewritten(f func(string) string) func(*proofText) {
	return func(p *proofText) { *p = proofText{header: f(p.text()), extra: "\x00"} }
}

// relabeled returns a change of the checkpoint's body, which the relay signs again.
func relabeled(f func(body string) string) func(*proofText) {
	return func(p *proofText) {
		p.body = f(p.body)
		origin, _, _ := strings.Cut(p.body, "\n")
		p.signatures = []string{signedNote(origin, logRelay, p.body)}
	}
}

// otherLeaf returns a change of the leaf. The tree has it.
func otherLeaf(index int, f func(leaf string) string) func(*proofText) {
	return func(p *proofText) {
		l := threadLog()
		l.leaves[index] = f(l.leaves[index])
		*p = l.proof(index, 5)
	}
}

// badProofs returns the vectors of proofs that must be refused.
func badProofs() (vectors []testvectors.LogVector) {
	l := threadLog()
	witness := []string{witnessKey(witnessName, logWitness)}
	for _, bad := range slicesOf(formFaults(l), pathFaults(l), checkpointFaults(l), signatureFaults(l), leafFaults()) {
		p := l.proof(3, 5)
		bad.change(&p)
		text := p.text()
		if p.extra == "\x00" {
			text = p.header // the whole text, see rewritten
		}
		vectors = append(vectors, testvectors.LogVector{Name: bad.name, Proof: text, Witnesses: witness,
			Expect: testvectors.Reject, Reason: bad.reason})
	}
	for _, bad := range []struct {
		name, reason, relay string
		message             []byte
		late                int
	}{
		{"another-message", "The leaf is that of another message.", logRelay.did, logOffer, 0},
		{"another-relay", "The proof is by another relay.", otherRelay.did, logAccept, 0},
		{"too-late", "The message arrived more than five minutes after its ts.",
			logRelay.did, logAccept, 5*60_000 + 1},
		{"too-early", "The message arrived more than five minutes before its ts.",
			logRelay.did, logAccept, -5*60_000 - 1},
	} {
		one := treeLog{logRelay, logEpoch, []string{startText("-"), leafText(9, logAccept, 2000+bad.late, logRequest)}}
		vectors = append(vectors, testvectors.LogVector{Name: bad.name, Proof: one.proof(1, 2).text(), Message: bad.message,
			Relay: bad.relay, Expect: testvectors.Reject, Reason: bad.reason})
	}
	return append(vectors, testvectors.LogVector{Name: "start-for-a-message", Proof: l.proof(0, 5).text(),
		Message: logRequest, Relay: logRelay.did, Expect: testvectors.Reject, Reason: "The proof is that of the start of the log."})
}

func slicesOf[T any](lists ...[]T) (all []T) {
	for _, list := range lists {
		all = append(all, list...)
	}
	return all
}

// looseBits returns another base64 text with the same bytes: the unused bits before the padding are not zero.
func looseBits(text string) string {
	i := strings.IndexByte(text, '=') - 1
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	return text[:i] + string(digits[strings.IndexByte(digits, text[i])|1]) + text[i+1:]
}

func formFaults(treeLog) []badProof {
	index := func(text string) func(*proofText) { return func(p *proofText) { p.index = text } }
	return []badProof{
		{"empty", "The text is empty.", rewritten(func(string) string { return "" })},
		{"other-version", "The first line names another format.",
			func(p *proofText) { p.header = "c2sp.org/tlog-proof@v2\n" }},
		{"line-before-the-header", "A line stands before the first one.",
			func(p *proofText) { p.header = "\n" + p.header }},
		{"carriage-returns", "Lines end with CR LF.",
			rewritten(func(text string) string { return strings.ReplaceAll(text, "\n", "\r\n") })},
		{"carriage-return-in-base64", "A line of base64 ends with CR LF.",
			func(p *proofText) { p.path[0] += "\r" }},
		{"no-line-end", "The last line has no LF.",
			rewritten(func(text string) string { return strings.TrimSuffix(text, "\n") })},
		{"text-behind", "A line stands behind the signatures.",
			rewritten(func(text string) string { return text + "end\n" })},
		{"empty-line-behind", "An empty line stands behind the signatures.",
			rewritten(func(text string) string { return text + "\n" })},
		{"no-extra", "The line extra is missing.", rewritten(func(text string) string {
			before, rest, _ := strings.Cut(text, "extra ")
			_, rest, _ = strings.Cut(rest, "\n")
			return before + rest
		})},
		{"empty-extra", "The line extra has no leaf.", func(p *proofText) { p.extra = "" }},
		{"path-without-padding", "The base64 of a line of the path has no padding.",
			func(p *proofText) { p.path[0] = strings.TrimRight(p.path[0], "=") }},
		{"extra-with-spaces", "A space stands behind extra.", func(p *proofText) { p.extra += " " }},
		{"index-with-a-zero", "The index begins with a zero.", index("03")},
		{"index-with-a-plus", "The index has a sign.", index("+3")},
		{"negative-index", "The index is negative.", index("-3")},
		{"index-in-hex", "The index is not decimal.", index("0x3")},
		{"no-index", "The index is empty.", index("")},
		{"enormous-index", "The index does not fit into 63 bits.", index("9223372036854775811")},
		{"no-empty-line", "No empty line stands before the checkpoint.", func(p *proofText) { p.gap = "" }},
		{"two-empty-lines", "Two empty lines stand before the checkpoint.", func(p *proofText) { p.gap = "\n\n" }},
	}
}

func pathFaults(l treeLog) []badProof {
	return []badProof{
		{"other-index", "The path does not fit the index.", func(p *proofText) { p.index = "2" }},
		{"index-beyond-the-size", "The tree has no leaf with this index.", func(p *proofText) { p.index = "5" }},
		{"short-path", "The path ends below the root.", func(p *proofText) { p.path = p.path[:len(p.path)-1] }},
		{"long-path", "The path has a line too many.", func(p *proofText) { p.path = append(p.path, p.path[0]) }},
		{"no-path", "The path is missing.", func(p *proofText) { p.path = nil }},
		{"path-in-another-order", "Two lines of the path are swapped.",
			func(p *proofText) { p.path[0], p.path[1] = p.path[1], p.path[0] }},
		{"path-of-another-leaf", "The path is that of another leaf.",
			func(p *proofText) { p.path = hashLines(pathOf(2, l.hashes(5))) }},
		{"path-with-loose-bits", "A line of the path has another spelling of the same bytes.",
			func(p *proofText) { p.path[0] = looseBits(p.path[0]) }},
		{"short-hash", "A hash of the path has 31 bytes.",
			func(p *proofText) { p.path[0] = base64.StdEncoding.EncodeToString(make([]byte, 31)) }},
		{"url-safe-path", "A line of the path is in the URL-safe alphabet.", func(p *proofText) {
			p.path[0] = base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, 32))
		}},
		{"64-lines", "The path has 64 lines.", func(p *proofText) {
			for len(p.path) < 64 {
				p.path = append(p.path, p.path[0])
			}
		}},
		{"leaf-of-another-tree", "The leaf is not in the tree.", func(p *proofText) {
			p.extra = base64.StdEncoding.EncodeToString([]byte(leafText(0xee, logAccept, 2020, logRequest)))
		}},
	}
}

func checkpointFaults(l treeLog) []badProof {
	line := func(n int, text string) func(*proofText) {
		return relabeled(func(body string) string {
			lines := strings.Split(body, "\n")
			lines[n] = text
			return strings.Join(lines, "\n")
		})
	}
	of := func(size int) func(*proofText) { return func(p *proofText) { *p = l.hugeProof(3, size) } }
	root := hashLines([]nodeHash{rootOf(l.hashes(5))})[0]
	return []badProof{
		{"log-too-large", "The log has 2^53 leaves.", of(largestLog + 1)},
		{"enormous-log", "The log has 2^62 + 1 leaves.", of(enormousLog)},
		{"largest-number-of-63-bits", "The log has 2^63 - 1 leaves.", of(math.MaxInt64)},
		{"origin-in-upper-case", "The epoch has upper-case letters.", line(0, logRelay.did+"/94C3EE3D")},
		{"short-epoch", "The epoch has seven digits.", line(0, logRelay.did+"/4c3ee3d")},
		{"no-epoch", "The origin has no epoch.", line(0, logRelay.did)},
		{"origin-with-a-path", "The origin has a third part.", line(0, l.origin()+"/x")},
		{"origin-that-is-no-did", "The origin does not begin with a DID.", line(0, "relay.example/"+logEpoch)},
		{"size-with-a-zero", "The size begins with a zero.", line(1, "05")},
		{"size-zero", "The log is empty.", line(1, "0")},
		{"other-size", "The path does not fit the size.", line(1, "9")},
		{"other-root", "The root is that of another tree.", line(2, hashLines([]nodeHash{rootOf(l.hashes(4))})[0])},
		{"root-with-loose-bits", "The root has another spelling of the same bytes.", line(2, looseBits(root))},
		{"extension-line", "A line stands behind the root.", line(2, root+"\nextension")},
		{"no-root", "The root is missing.",
			relabeled(func(body string) string { return strings.TrimSuffix(body, root+"\n") })},
		{"checkpoint-of-the-future", "The size has 20 digits.", line(1, "18446744073709551616")},
	}
}

func signatureFaults(l treeLog) []badProof {
	add := func(lines func(p *proofText) []string) func(*proofText) {
		return func(p *proofText) { p.signatures = append(p.signatures, lines(p)...) }
	}
	replace := func(line func(p *proofText) string) func(*proofText) {
		return func(p *proofText) { p.signatures = []string{line(p)} }
	}
	wrong := signatureLine(l.origin(), 1, logRelay, make([]byte, 64))
	return []badProof{
		{"no-signature", "Nobody has signed the checkpoint.", func(p *proofText) { p.signatures = nil }},
		{"no-line-before-the-signatures", "No empty line stands before the signatures.",
			func(p *proofText) { p.gap2 = "" }},
		{"two-lines-before-the-signatures", "Two empty lines stand before the signatures.",
			func(p *proofText) { p.gap2 = "\n\n" }},
		{"only-a-witness", "The relay has not signed the checkpoint.",
			replace(func(p *proofText) string { return cosigned(witnessName, logWitness, p.body, cosignedAt) })},
		{"signed-by-another-key", "The signature is by another key.",
			replace(func(p *proofText) string { return signedNote(l.origin(), otherRelay, p.body) })},
		{"signed-under-another-name", "The signature has another name than the log.",
			replace(func(p *proofText) string { return signedNote(logRelay.did, logRelay, p.body) })},
		{"signed-as-a-witness", "The relay's signature has the type of a witness.",
			replace(func(p *proofText) string { return cosigned(l.origin(), logRelay, p.body, cosignedAt) })},
		{"wrong-signature", "The relay's signature is wrong.", replace(func(*proofText) string { return wrong })},
		{"signature-of-another-size", "The relay has signed another checkpoint.",
			replace(func(*proofText) string { return signedNote(l.origin(), logRelay, l.body(4)) })},
		{"short-signature", "The relay's signature has 63 bytes.",
			replace(func(*proofText) string { return signatureLine(l.origin(), 1, logRelay, make([]byte, 63)) })},
		{"second-wrong-signature", "A second signature by the relay is wrong.",
			add(func(*proofText) []string { return []string{wrong} })},
		{"wrong-cosignature", "The signature of a known witness is wrong.", add(func(p *proofText) []string {
			return []string{cosigned(witnessName, logWitness, p.body+"x", cosignedAt)}
		})},
		{"cosignature-without-time", "The signature of a known witness has no time.",
			add(func(p *proofText) []string {
				return []string{signatureLine(witnessName, 4, logWitness, make([]byte, 64))}
			})},
		{"cosignature-at-another-time", "The witness has signed another time.", add(func(p *proofText) []string {
			line := cosigned(witnessName, logWitness, p.body, cosignedAt)
			raw, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(strings.Split(line, " ")[2], "\n"))
			if err != nil {
				panic(err)
			}
			raw[11]++
			return []string{"— " + witnessName + " " + base64.StdEncoding.EncodeToString(raw) + "\n"}
		})},
		{"hyphen", "A signature begins with a hyphen.", add(func(p *proofText) []string {
			return []string{strings.Replace(cosigned("x", stranger, p.body, 1), "—", "-", 1)}
		})},
		{"no-name", "A signature has no name.", add(func(p *proofText) []string {
			return []string{strings.Replace(cosigned("x", stranger, p.body, 1), "— x ", "—  ", 1)}
		})},
		{"name-with-a-plus", "The name of a signature has a plus.",
			add(func(p *proofText) []string { return []string{cosigned("x+y", stranger, p.body, 1)} })},
		{"name-with-a-tab", "The name of a signature has a tab.",
			add(func(p *proofText) []string { return []string{cosigned("x\ty", stranger, p.body, 1)} })},
		{"name-with-a-wide-space", "The name of a signature has a space of Unicode.",
			add(func(p *proofText) []string { return []string{cosigned("x\u3000y", stranger, p.body, 1)} })},
		{"signature-with-loose-bits", "A signature has another spelling of the same bytes.",
			add(func(p *proofText) []string {
				return []string{looseBits(signatureLine("xx", 1, stranger, make([]byte, 64)))}
			})},
		{"signature-without-bytes", "A signature has only the hash of its key.",
			add(func(p *proofText) []string { return []string{signatureLine("x", 1, stranger, nil)} })},
		{"101-signatures", "The checkpoint has 101 signatures.", add(func(p *proofText) (lines []string) {
			for i := range 100 {
				lines = append(lines, cosigned(fmt.Sprint("w", i), stranger, p.body, 1))
			}
			return lines
		})},
	}
}

func leafFaults() []badProof {
	replace := func(index int, old, new string) func(*proofText) {
		return otherLeaf(index, func(leaf string) string {
			if !strings.Contains(leaf, old) {
				panic("the leaf has no " + old)
			}
			return strings.Replace(leaf, old, new, 1)
		})
	}
	origin := logRelay.did + "/00000001"
	root := hashLines([]nodeHash{{}})[0]
	return []badProof{
		{"leaf-of-another-version", "The first line of the leaf is another.", replace(3, "leaf/1", "leaf/2")},
		{"short-salt", "The salt has 15 bytes.", replace(3, "AwMDAwMDAwMDAwMDAwMDAw", "AwMDAwMDAwMDAwMDAwMD")},
		{"salt-with-loose-bits", "The salt has another spelling of the same bytes.",
			replace(3, "AwMDAwMDAwMDAwMDAwMDAw", "AwMDAwMDAwMDAwMDAwMDAx")},
		{"event-in-upper-case", "The hash of the message has upper-case letters.",
			otherLeaf(3, func(leaf string) string {
				hash := contentHash(logAccept)
				return strings.Replace(leaf, hash, strings.ToUpper(hash), 1)
			})},
		{"request-of-zeros", "A REQUEST that is not known is written as a hyphen.",
			otherLeaf(3, func(leaf string) string {
				return strings.Replace(leaf, contentHash(logRequest), strings.Repeat("0", 64), 1)
			})},
		{"received-without-milliseconds", "The time has no milliseconds.", replace(3, "02.020Z", "02Z")},
		{"received-with-an-offset", "The time has an offset.", replace(3, "02.020Z", "02.020+00:00")},
		{"no-such-day", "The time has a day that does not exist.", replace(3, "2026-02-02", "2026-02-30")},
		{"line-too-many", "The leaf has a sixth line.",
			otherLeaf(3, func(leaf string) string { return leaf + "x\n" })},
		{"leaf-without-line-end", "The leaf has no LF at its end.",
			otherLeaf(3, func(leaf string) string { return strings.TrimSuffix(leaf, "\n") })},
		{"lines-in-another-order", "Two lines of the leaf are swapped.", otherLeaf(3, func(leaf string) string {
			lines := strings.SplitAfter(leaf, "\n")
			lines[1], lines[2] = lines[2], lines[1]
			return strings.Join(lines, "")
		})},
		{"message-as-leaf-0", "Leaf 0 is not the start of a log.",
			otherLeaf(0, func(string) string { return leafText(1, logAccept, 20, nil) })},
		{"start-as-leaf-3", "A leaf that is not leaf 0 is the start of a log.",
			otherLeaf(3, func(string) string { return startText("-") })},
		{"start-after-an-empty-log", "The log before the start has no leaf.",
			otherLeaf(0, func(string) string { return startText(origin + " 0 " + root) })},
		{"start-after-a-log-of-size-05", "The size of the log before begins with a zero.",
			otherLeaf(0, func(string) string { return startText(origin + " 05 " + root) })},
		{"start-without-previous", "The start does not name the log before.",
			otherLeaf(0, func(string) string { return startText("") })},
		{"start-with-a-fourth-part", "The line previous has a fourth part.",
			otherLeaf(0, func(string) string { return startText(origin + " 5 " + root + " x") })},
	}
}
