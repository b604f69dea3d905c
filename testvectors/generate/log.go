package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// The identities of the log vectors, as in the example of LOG.
var (
	logRelay   = newKey(1)
	logClient  = newKey(2)
	logAgent   = newKey(3)
	logWitness = newKey(5)
	otherRelay = newKey(6)
	stranger   = newKey(7)
)

const logEpoch = "94c3ee3d"

// treeLog is a log: the texts of its leaves. Its tree is a tree of RFC 6962 §2.1.
type treeLog struct {
	key    key
	epoch  string
	leaves []string
}

func (l treeLog) origin() string { return l.key.did + "/" + l.epoch }

type nodeHash = [sha256.Size]byte

func node(left, right nodeHash) nodeHash {
	return sha256.Sum256(slices.Concat([]byte{1}, left[:], right[:]))
}

func (l treeLog) hashes(size int) (all []nodeHash) {
	for _, text := range l.leaves[:size] {
		all = append(all, sha256.Sum256([]byte("\x00"+text)))
	}
	return all
}

// split returns the largest power of two below n, which is at least 2.
func split(n int) int { return 1 << (bits.Len(uint(n-1)) - 1) }

func rootOf(hashes []nodeHash) nodeHash {
	if len(hashes) == 1 {
		return hashes[0]
	}
	k := split(len(hashes))
	return node(rootOf(hashes[:k]), rootOf(hashes[k:]))
}

func pathOf(i int, hashes []nodeHash) []nodeHash {
	if len(hashes) == 1 {
		return nil
	}
	k := split(len(hashes))
	if i < k {
		return append(pathOf(i, hashes[:k]), rootOf(hashes[k:]))
	}
	return append(pathOf(i-k, hashes[k:]), rootOf(hashes[:k]))
}

// huge returns the root of a tree with n leaves that has this leaf at i, and the path from there. The hashes beside the
// path are invented.
func huge(leaf nodeHash, i, n int) (root nodeHash, path []nodeHash) {
	if n == 1 {
		return leaf, nil
	}
	k, beside := split(n), nodeHash{byte(bits.Len(uint(n)))}
	if i < k {
		root, path = huge(leaf, i, k)
		return node(root, beside), append(path, beside)
	}
	root, path = huge(leaf, i-k, n-k)
	return node(beside, root), append(path, beside)
}

// consistencyOf returns SUBPROOF(m, hashes, complete) of RFC 6962 §2.1.2.
func consistencyOf(m int, hashes []nodeHash, complete bool) []nodeHash {
	if m == len(hashes) {
		if complete {
			return nil
		}
		return []nodeHash{rootOf(hashes)}
	}
	k := split(len(hashes))
	if m <= k {
		return append(consistencyOf(m, hashes[:k], complete), rootOf(hashes[k:]))
	}
	return append(consistencyOf(m-k, hashes[k:], false), rootOf(hashes[:k]))
}

func hashLines(hashes []nodeHash) (lines []string) {
	for _, h := range hashes {
		lines = append(lines, base64.StdEncoding.EncodeToString(h[:]))
	}
	return lines
}

// body returns the signed part of the checkpoint of the first size leaves.
func (l treeLog) body(size int) string { return l.bodyOf(size, rootOf(l.hashes(size))) }

// bodyOf returns the signed part of a checkpoint.
func (l treeLog) bodyOf(size int, root nodeHash) string {
	return fmt.Sprintf("%s\n%d\n%s\n", l.origin(), size, base64.StdEncoding.EncodeToString(root[:]))
}

// signatureLine returns a line under a checkpoint.
func signatureLine(name string, kind byte, k key, signature []byte) string {
	hash := keyHash(name, kind, k)
	return fmt.Sprintf("— %s %s\n", name, base64.StdEncoding.EncodeToString(slices.Concat(hash, signature)))
}

func keyHash(name string, kind byte, k key) []byte {
	sum := sha256.Sum256(slices.Concat([]byte(name+"\n"), []byte{kind}, k.private.Public().(ed25519.PublicKey)))
	return sum[:4]
}

// signedNote returns the line of a signature of body by k, under a name.
func signedNote(name string, k key, body string) string {
	return signatureLine(name, 1, k, ed25519.Sign(k.private, []byte(body)))
}

// cosigned returns the line of a witness.
func cosigned(name string, k key, body string, at int64) string {
	message := fmt.Sprintf("cosignature/v1\ntime %d\n%s", at, body)
	stamp := binary.BigEndian.AppendUint64(nil, uint64(at))
	return signatureLine(name, 4, k, append(stamp, ed25519.Sign(k.private, []byte(message))...))
}

// witnessKey returns the verifier key of a witness.
func witnessKey(name string, k key) string {
	public := k.private.Public().(ed25519.PublicKey)
	encoded := base64.StdEncoding.EncodeToString(append([]byte{4}, public...))
	return fmt.Sprintf("%s+%x+%s", name, keyHash(name, 4, k), encoded)
}

// checkpoint returns the checkpoint of the first size leaves.
func (l treeLog) checkpoint(size int) string { return l.signed(l.body(size)) }

// signed returns the checkpoint with this body.
func (l treeLog) signed(body string) string { return body + "\n" + signedNote(l.origin(), l.key, body) }

// proofText is a proof in parts, so that a table can change one of them.
type proofText struct {
	header, extra, index string
	path                 []string
	gap, body            string
	gap2                 string
	signatures           []string
}

func (p proofText) text() string {
	text := p.header + "extra " + p.extra + "\nindex " + p.index + "\n"
	for _, line := range p.path {
		text += line + "\n"
	}
	return text + p.gap + p.body + p.gap2 + strings.Join(p.signatures, "")
}

// proof returns the proof of a leaf under the checkpoint of the first size leaves.
func (l treeLog) proof(index, size int) proofText {
	body := l.body(size)
	return proofText{header: "c2sp.org/tlog-proof@v1\n", extra: base64.StdEncoding.EncodeToString([]byte(l.leaves[index])),
		index: fmt.Sprint(index), path: hashLines(pathOf(index, l.hashes(size))), gap: "\n", body: body, gap2: "\n",
		signatures: []string{signedNote(l.origin(), l.key, body)}}
}

// hugeProof returns the proof of a leaf in a log with size leaves, more than l has.
func (l treeLog) hugeProof(index, size int) proofText {
	p := l.proof(index, len(l.leaves))
	root, path := huge(l.hashes(index + 1)[index], index, size)
	p.path, p.body = hashLines(path), l.bodyOf(size, root)
	p.signatures = []string{signedNote(l.origin(), l.key, p.body)}
	return p
}

// The largest log, and a size near the end of 63 bits.
const (
	largestLog  = 1<<53 - 1
	enormousLog = 1<<62 + 1
)

// millis returns the time this number of milliseconds after noon.
func millis(n int) string {
	start, err := time.Parse(time.RFC3339, noon)
	if err != nil {
		panic(err)
	}
	return start.Add(time.Duration(n) * time.Millisecond).Format("2006-01-02T15:04:05.000Z")
}

// signedForm returns the canonical form of a signed draft.
func signedForm(d draft) []byte { return canonical([]byte(d.signed())) }

// contentHash returns the hash of an envelope in hex.
func contentHash(form []byte) string {
	sum := sha256.Sum256(form)
	return hex.EncodeToString(sum[:])
}

// leafText returns the leaf of an envelope that arrived this number of milliseconds after noon. request is the envelope
// of the REQUEST, or nil.
func leafText(salt byte, form []byte, received int, request []byte) string {
	hash := "-"
	if request != nil {
		hash = contentHash(request)
	}
	return fmt.Sprintf("agora-leaf/1\nsalt %s\nevent %s\nreceived %s\nrequest %s\n",
		base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte{salt}, 16)), contentHash(form), millis(received), hash)
}

func startText(previous string) string {
	return fmt.Sprintf("agora-log/1\nbegan %s\nprevious %s\n", millis(-1000), previous)
}

// The messages of one thread.
var (
	logRequest = signedForm(msg(logClient, "REQUEST", "log_1", 0))
	logOffer   = signedForm(msg(logAgent, "OFFER", "log_2", 1).to(logClient))
	logAccept  = signedForm(msg(logClient, "ACCEPT", "log_3", 2).to(logAgent))
	logResult  = signedForm(msg(logAgent, "RESULT", "log_4", 3).to(logClient))
	logCancel  = signedForm(msg(logClient, "CANCEL", "log_5", 4))
)

// threadLog returns the log of that thread: the start, REQUEST, OFFER, ACCEPT, RESULT, and more leaves.
func threadLog() treeLog {
	l := treeLog{logRelay, logEpoch, []string{startText("-")}}
	for i, form := range [][]byte{logRequest, logOffer, logAccept, logResult} {
		l.leaves = append(l.leaves, leafText(byte(i+1), form, 1000*i+20, logRequest))
	}
	for i := range 9 {
		form := signedForm(msg(logAgent, "OFFER", fmt.Sprint("log_more_", i), 10+i))
		l.leaves = append(l.leaves, leafText(byte(i+20), form, 1000*(10+i), nil))
	}
	return l
}
