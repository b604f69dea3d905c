package testvectors_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
)

// minVectors is the minimum number of vectors in each file. If vectors are removed from a file, change the number here.
var minVectors = map[string]int{
	"didkey.json": 169, "canonicalize.json": 209, "sign.json": 18, "verify.json": 387, "window.json": 54, "threads.json": 468,
	"conversations.json": 28, "reads.json": 47, "sealing.json": 118, "log.json": 197,
	"relays.json": 121,
}

// vector has the members that the vectors of all files have, as well as the steps of conversations.
type vector struct {
	Name, Code, Reason string
	Expect             testvectors.Expect
	Steps              []vector
}

func TestFiles(t *testing.T) {
	found, err := filepath.Glob("*.json")
	found = slices.DeleteFunc(found, func(name string) bool { return name == "protocol.json" }) // has tables
	if err != nil || len(found) != len(minVectors) {
		t.Fatalf("%d vector files (%v), want %d", len(found), err, len(minVectors))
	}
	for name, fewest := range minVectors {
		text, err := os.ReadFile(name)
		var file testvectors.File[vector]
		if err == nil {
			err = json.Unmarshal(text, &file)
		}
		if err != nil || file.Description == "" || len(file.Vectors) < fewest {
			t.Errorf("%s: %d vectors, %v; want at least %d and a description", name, len(file.Vectors), err, fewest)
		}
		names, verdicts := map[string]bool{}, map[testvectors.Expect]int{}
		for _, v := range file.Vectors {
			if v.Name == "" || names[v.Name] {
				t.Errorf("%s: the name %q is empty or not unique", name, v.Name)
			}
			names[v.Name] = true
			if v.Steps == nil {
				v.Steps = []vector{v}
			}
			for _, step := range v.Steps {
				verdicts[step.Expect]++
				checkVerdict(t, name+": "+v.Name, step)
			}
		}
		if verdicts[testvectors.Accept] == 0 || verdicts[testvectors.Reject] == 0 && name != "sign.json" {
			t.Errorf("%s: both verdicts must occur, but the vectors have %v", name, verdicts)
		}
	}
}

// sentences matches the end of a sentence. The dots in 1.0 and thread.id do not match.
var sentences = regexp.MustCompile(`[a-z)][.!?]( |$)`)

func checkVerdict(t *testing.T, name string, v vector) {
	t.Helper()
	switch v.Expect {
	case testvectors.Accept:
		if v.Code != "" || v.Reason != "" {
			t.Errorf("%s has expect \"accept\" and also a code or a reason", name)
		}
	case testvectors.Reject:
		if !strings.HasSuffix(v.Reason, ".") || len(sentences.FindAllString(v.Reason, -1)) > 1 {
			t.Errorf("%s: the reason is not one sentence: %q", name, v.Reason)
		}
		if v.Code != "" && envelope.Code(v.Code).Info().Text == "" {
			t.Errorf("%s: there is no code %s", name, v.Code)
		}
	default:
		t.Errorf("%s: invalid value of expect: %q", name, v.Expect)
	}
}

// TestEveryCodeHasAVector checks that there is a vector for each refusal of a post, except rate limits of senders.
func TestEveryCodeHasAVector(t *testing.T) {
	met := map[string]bool{}
	for _, v := range testvectors.Verify() {
		met[v.Code] = true
	}
	for _, v := range testvectors.Threads() {
		met[v.Code] = true
	}
	for _, c := range testvectors.Conversations() {
		for _, step := range c.Steps {
			met[step.Code] = true
		}
	}
	for _, row := range envelope.Codes() {
		if row.OfMessage && !met[string(row.Code)] {
			t.Errorf("no vector is refused with %s", row.Code)
		}
	}
}

// TestReadmeNamesEveryFile checks that README.md names all files, except the schemas of payloads, and has the right counts.
func TestReadmeNamesEveryFile(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	schemas, err := filepath.Glob("schema/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range schemas {
		kind := envelope.Type(strings.ToUpper(strings.TrimSuffix(filepath.Base(name), ".json")))
		if !kind.Known() && !bytes.Contains(readme, []byte(filepath.Base(name))) {
			t.Errorf("README.md does not name %s", name)
		}
	}
	for name, count := range minVectors {
		if !strings.Contains(string(readme), "| `"+name+"` | "+strconv.Itoa(count)+" |") {
			t.Errorf("README.md does not say that %s has %d vectors", name, count)
		}
	}
	for _, suite := range publicSuites {
		if !strings.Contains(string(readme), "| "+suite.name+" | "+strconv.Itoa(suite.vectors)+" |") {
			t.Errorf("README.md does not say that %s has %d vectors", suite.name, suite.vectors)
		}
	}
}
