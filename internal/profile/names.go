package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/gofrs/flock"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/fsync"
)

// maxNames is how many names an address book has at most.
const maxNames = 5000

// reserved are words that stand for somebody in the output of agora.
var reserved = []string{"me", "everybody", "relay"}

// CheckPerson returns an error unless name can be in the address book. The name must follow the rules of CheckName. It
// must not be a word of agora's output, and must not begin like a DID.
func CheckPerson(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	lower := strings.ToLower(name)
	if slices.Contains(reserved, lower) || strings.HasPrefix(lower, "z6mk") {
		return fmt.Errorf("%s cannot be a name, because it has another meaning in the output of agora", name)
	}
	return nil
}

// Entry is one line of the address book.
type Entry struct {
	Name string     `json:"name"`
	DID  didkey.DID `json:"did"`
}

// Book is the content of the address book. Each name stands for one DID, and a DID has one name. Upper and lower case
// make no difference between names. The zero Book is empty.
type Book struct {
	entries []Entry // sorted by name
	names   map[didkey.DID]string
	dids    map[string]didkey.DID // by name in lower case
}

// Entries returns all names, sorted.
func (b Book) Entries() []Entry { return b.entries }

// Name returns the name of a DID; empty: it has none.
func (b Book) Name(did didkey.DID) string { return b.names[did] }

// DID returns the DID of a name.
func (b Book) DID(name string) (did didkey.DID, ok bool) {
	did, ok = b.dids[strings.ToLower(name)]
	return did, ok
}

// Names is the file of the address book in a folder. It is safe for concurrent use, also by several processes.
type Names struct{ path string }

// NewNames returns the address book of a folder. It need not exist.
func NewNames(folder string) Names { return Names{filepath.Join(folder, "names.toml")} }

// Path returns the name of the file.
func (n Names) Path() string { return n.path }

// Read reads the address book. A file that does not exist is an empty book. Errors: the file is damaged.
func (n Names) Read() (Book, error) {
	text, err := read(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return Book{}, nil
	}
	if err != nil {
		return Book{}, err
	}
	var dids map[string]string
	if _, err := toml.Decode(string(text), &dids); err != nil {
		return Book{}, fmt.Errorf("%s is damaged: %w; each line must be: name = \"did:key:…\"", n.path, err)
	}
	book, err := newBook(dids)
	if err != nil {
		return Book{}, fmt.Errorf("%s: %w", n.path, err)
	}
	return book, nil
}

// newBook returns a book with these DIDs by name.
func newBook(dids map[string]string) (Book, error) {
	b := Book{names: map[didkey.DID]string{}, dids: map[string]didkey.DID{}}
	if len(dids) > maxNames {
		return Book{}, fmt.Errorf("there are more than %d names", maxNames)
	}
	for _, name := range slices.Sorted(maps.Keys(dids)) {
		did, err := didkey.Parse(dids[name])
		if err = errors.Join(CheckPerson(name), err); err != nil {
			return Book{}, err
		}
		if other, taken := b.names[did]; taken {
			return Book{}, fmt.Errorf("%s and %s are the same DID", other, name)
		}
		if _, taken := b.DID(name); taken {
			return Book{}, fmt.Errorf("the name %s occurs twice", name)
		}
		b.entries = append(b.entries, Entry{name, did})
		b.names[did], b.dids[strings.ToLower(name)] = name, did
	}
	return b, nil
}

// ErrTaken is in the error of Set if the name stands for another DID.
var ErrTaken = errors.New("the name is taken")

// Set gives did a name, and returns the name that it had before; empty: none. It does nothing if did has this name.
// Errors: ErrTaken; the name is not allowed; the book is full or damaged.
func (n Names) Set(ctx context.Context, name string, did didkey.DID) (before string, err error) {
	if err := CheckPerson(name); err != nil {
		return "", err
	}
	err = n.change(ctx, func(b Book, dids map[string]string) error {
		if other, taken := b.DID(name); taken && other != did {
			return fmt.Errorf("%w: %s is %s", ErrTaken, b.Name(other), other)
		}
		before = b.Name(did)
		delete(dids, before)
		dids[name] = string(did)
		return nil
	})
	return before, err
}

// Remove removes a name. The error is fs.ErrNotExist if it is not in the book.
func (n Names) Remove(ctx context.Context, name string) error {
	return n.change(ctx, func(b Book, dids map[string]string) error {
		did, ok := b.DID(name)
		if !ok {
			return fs.ErrNotExist
		}
		delete(dids, b.Name(did))
		return nil
	})
}

// change locks the book, lets f change the DIDs by name, and writes the book if they have changed.
func (n Names) change(ctx context.Context, f func(b Book, dids map[string]string) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(n.path), 0o700); err != nil {
		return err
	}
	lock := flock.New(n.path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return fmt.Errorf("locking the address book: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	b, err := n.Read()
	if err != nil {
		return err
	}
	dids := map[string]string{}
	for _, entry := range b.entries {
		dids[entry.Name] = string(entry.DID)
	}
	before := maps.Clone(dids)
	if err := f(b, dids); err != nil || maps.Equal(before, dids) {
		return err
	}
	if _, err := newBook(dids); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(dids); err != nil {
		return err
	}
	return fsync.Replace(n.path, text.Bytes())
}
