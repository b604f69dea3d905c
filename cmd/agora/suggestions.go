package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/clidoc"
	"github.com/agora-relay/agora/internal/profile"
)

// suggestions are the words that a shell offers besides commands and flags: profiles, names of the address book, and
// what the relay knows: my threads, agents and intents. A shell must never wait for them or show an error. So all
// failures lead to fewer words.
type suggestions struct {
	env   cli.Environment
	words []string // the command line so far
}

const (
	askTime      = 300 * time.Millisecond // how long the command waits for the relay
	freshTime    = 10 * time.Second       // how long an answer is used without asking again
	staleTime    = 24 * time.Hour         // how long an answer is used if the relay is silent
	mostKnown    = 50                     // words
	maxKnownFile = 1 << 20                // bytes
)

// of returns the words that a flag or an argument can have. Its tag complete, or else its type, says of which kind they
// are.
func (s suggestions) of(v *kong.Value) []clidoc.Candidate {
	kind := v.Tag.Get("complete")
	if kind == "" && isDID(v.Target.Type()) {
		kind = "agent"
	}
	switch kind {
	case "profile":
		return s.profiles()
	case "name":
		return s.names()
	case "agent":
		return append(s.names(), s.atRelay(kind)...)
	case "thread", "intent":
		return s.atRelay(kind)
	}
	return nil
}

// isDID reports whether a flag of this type is a DID, or a list of them.
func isDID(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	return t == reflect.TypeFor[cli.DIDText]()
}

func (s suggestions) profiles() (all []clidoc.Candidate) {
	folder, err := profile.Folder()
	if err != nil {
		return nil
	}
	names, _ := profile.List(folder)
	for _, name := range names {
		if p, err := profile.Load(folder, name); err == nil {
			all = append(all, clidoc.Candidate{Word: name, Help: strings.Join(p.Texts("relay"), " ")})
		}
	}
	return all
}

func (s suggestions) names() (all []clidoc.Candidate) {
	names, err := cli.AddressBook()
	if err != nil {
		return nil
	}
	book, _ := names.Read()
	for _, entry := range book.Entries() {
		all = append(all, clidoc.Candidate{Word: entry.Name, Help: string(entry.DID)})
	}
	return all
}

// atRelay returns what the relay knows. It asks the relay that the command line so far names, with its key. The answer
// is kept in a file for the next call.
func (s suggestions) atRelay(kind string) []clidoc.Candidate {
	ctx, cancel := context.WithTimeout(s.env.Ctx, askTime)
	defer cancel()
	from, relay, me, err := s.connect()
	if err != nil {
		return nil
	}
	file := cacheFile(from, string(me), kind)
	words, at := loadKnown(file)
	if old := time.Since(at); old < 0 || old >= freshTime {
		if all, err := askRelay(ctx, relay, me, kind); err == nil {
			saveKnown(file, all)
			words = all
		} else if old >= staleTime {
			words = nil
		}
	}
	// A word that is not an id would need quotes in a shell.
	return slices.DeleteFunc(words, func(c clidoc.Candidate) bool { return !envelope.ValidID(c.Word) })
}

// connect returns the relay that the command line so far names, a client of it, and the DID of the key.
func (s suggestions) connect() (url string, relay *client.Client, me didkey.DID, err error) {
	args := []string{"agents"} // it has the flags of a relay, and needs no key
	for i, word := range s.words {
		switch name, _, hasValue := strings.Cut(word, "="); name {
		case "--profile", "--relay", "--key":
			if args = append(args, word); !hasValue && i+1 < len(s.words)-1 {
				args = append(args, s.words[i+1])
			}
		case "--private":
			args = append(args, word)
		}
	}
	line := new(commandLine)
	parser, err := newParser(line, onlyCommand(args))
	if err == nil {
		_, err = parser.Parse(args)
	}
	if err != nil {
		return "", nil, "", err
	}
	quiet := s.env
	quiet.Stderr = io.Discard
	at := cli.Reader{Remote: line.Agents.First(), Key: line.Agents.Key}
	relay, me, err = at.Identity(quiet)
	return string(at.Relay), relay, me, err
}

// askRelay reads words of this kind from the relay.
func askRelay(ctx context.Context, relay *client.Client, me didkey.DID, kind string) (all []clidoc.Candidate, err error) {
	if kind == "thread" {
		if me == "" {
			return nil, nil
		}
		threads, err := trade.OwnThreads(ctx, relay, me, 1)
		for _, one := range threads[:min(len(threads), mostKnown)] {
			all = append(all, clidoc.Candidate{Word: one.ID,
				Help: trade.JoinWords(one.Intent, cli.Age(time.Since(one.At))+" ago")})
		}
		return all, err
	}
	page, err := relay.Agents(ctx, client.AgentQuery{Limit: mostKnown})
	seen := map[string]bool{}
	for _, a := range page.Agents {
		m := trade.ManifestOf(a.Manifests[0])
		if kind == "agent" {
			all = append(all, clidoc.Candidate{Word: string(a.ID), Help: trade.JoinWords(cli.Quoted(m.Name), strings.Join(m.IntentIDs(), " "))})
			continue
		}
		for _, intent := range m.IntentIDs() {
			if !seen[intent] {
				seen[intent] = true
				all = append(all, clidoc.Candidate{Word: intent, Help: cli.Quoted(m.Name)})
			}
		}
	}
	return all, err
}

// cacheFile returns the name of the file that keeps an answer; empty: the system has no folder for it.
func cacheFile(of ...string) string {
	folder, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(folder, "agora", fmt.Sprintf("complete-%x.json", sha256.Sum256([]byte(strings.Join(of, "\n")))))
}

// loadKnown returns the answer in a file, and when it was written. A file that cannot be used is an old empty answer.
func loadKnown(file string) (known []clidoc.Candidate, at time.Time) {
	info, err := os.Stat(file)
	if err != nil || info.Size() > maxKnownFile {
		return nil, time.Time{}
	}
	text, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(text, &known) != nil {
		return nil, time.Time{}
	}
	return known, info.ModTime()
}

// saveKnown writes an answer to a file. Other processes see the old answer or the new one.
func saveKnown(file string, known []clidoc.Candidate) {
	if file == "" || os.MkdirAll(filepath.Dir(file), 0o700) != nil {
		return
	}
	text, err := json.Marshal(known)
	if err != nil {
		return
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "complete-*.tmp") // mode 0600
	if err != nil {
		return
	}
	_, err = temp.Write(text)
	if temp.Close() != nil || err != nil || os.Rename(temp.Name(), file) != nil {
		_ = os.Remove(temp.Name())
	}
}
