package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/internal/profile"
)

// NameCmd changes or shows the address book.
type NameCmd struct {
	Name   string   `arg:"" optional:"" complete:"name" help:"The name to give, to show or to remove."`
	DID    *DIDText `arg:"" name:"did" optional:"" help:"Whose name it is."`
	Remove bool     `help:"Remove the name."`
	Listing
}

func (NameCmd) Help() string {
	return "Gives a name to a DID, in an address book that only you see. All commands then take the name where they take a " +
		"DID, and show it instead of the DID. Without arguments, lists the names. Names that agents give themselves are " +
		"something else: agora shows those in quotes.\n\n" +
		"A name has 1 to 32 characters: letters without accents, digits and ._- with a letter or a digit at the start. Upper and " +
		"lower case make no difference. A DID has one name; a second one replaces the first.\n\n" + FormatHelp(profile.Entry{}) +
		"Examples:\n  agora name alice did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp\n  agora name\n" +
		"  agora name --remove alice\n  agora send request --to alice --intent echo"
}

func (c NameCmd) Validate() error {
	switch {
	case c.Remove && (c.Name == "" || c.DID != nil):
		return errors.New("--remove needs a name, and nothing else")
	case c.DID != nil:
		return profile.CheckPerson(c.Name)
	}
	return nil
}

func (c NameCmd) Run(env Environment) error {
	if err := c.Format.Check(profile.Entry{}); err != nil {
		return err
	}
	names, err := AddressBook()
	switch {
	case err != nil:
		return err
	case c.Remove:
		if err = names.Remove(env.Ctx, c.Name); errors.Is(err, fs.ErrNotExist) {
			return unknownName(c.Name, names)
		}
		return err
	case c.DID != nil:
		return c.set(env, names)
	}
	book, err := names.Read()
	if err != nil {
		return err
	}
	all := book.Entries()
	if c.Name != "" {
		did, ok := book.DID(c.Name)
		if !ok {
			return unknownName(c.Name, names)
		}
		all = []profile.Entry{{Name: book.Name(did), DID: did}}
	}
	if len(all) == 0 {
		env.Say("there are no names yet; agora name NAME DID gives one")
	}
	return Show(env, c.Listing, []string{"NAME", "DID"}, all, func(e profile.Entry) []string {
		return []string{e.Name, string(e.DID)}
	})
}

func (c NameCmd) set(env Environment, names profile.Names) error {
	did := didkey.DID(*c.DID)
	before, err := names.Set(env.Ctx, c.Name, did)
	switch {
	case errors.Is(err, profile.ErrTaken):
		return fmt.Errorf("%w; remove it first: agora name --remove %s", err, c.Name)
	case err == nil && before != "" && before != c.Name:
		env.Say("%s was called %s until now", did, before)
	}
	return err
}

// AddressBook returns the address book. Errors: there is no folder for the configuration.
func AddressBook() (profile.Names, error) {
	folder, err := profile.Folder()
	if err != nil {
		return profile.Names{}, err
	}
	return profile.NewNames(folder), nil
}

// unknownName returns the error for a name that is not in the address book.
func unknownName(name string, names profile.Names) error {
	book, err := names.Read()
	if err != nil {
		return err
	}
	var known []string
	for _, entry := range book.Entries() {
		known = append(known, entry.Name)
	}
	return fmt.Errorf("there is no name %q in your address book; agora name %s DID adds it%s", name, name, DidYouMean(name, known))
}

// PersonDID returns the DID that an argument means: a did:key, or a name of the address book.
func PersonDID(text string) (didkey.DID, error) {
	if strings.HasPrefix(text, "did:") || profile.CheckName(text) != nil {
		return didkey.Parse(text)
	}
	names, err := AddressBook()
	if err != nil {
		return "", fmt.Errorf("%q is not a did:key, and %w", text, err)
	}
	book, err := names.Read()
	if err != nil {
		return "", err
	}
	if did, ok := book.DID(text); ok {
		return did, nil
	}
	return "", unknownName(text, names)
}

// People gives identities their names in the output of a command.
type People struct {
	Me    didkey.DID // the identity of the key; empty: none
	Book  profile.Book
	Short bool // a DID without a name is shortened: in tables on a terminal
}

// People returns what the address book says. A book that cannot be read is reported, and counts as empty.
func (env Environment) People(me didkey.DID) People {
	p := People{Me: me}
	names, err := AddressBook()
	if err != nil {
		return p // without a home there are no names
	}
	if p.Book, err = names.Read(); err != nil {
		env.Say("names are not shown: %v", err)
	}
	return p
}

// Name returns the name of a DID: "me" or one of the address book; empty: it has none.
func (p People) Name(did didkey.DID) string {
	if did != "" && did == p.Me {
		return "me"
	}
	return p.Book.Name(did)
}

// Who returns how a text names a DID: by its name, or else by the DID itself. Empty: did is empty.
func (p People) Who(did didkey.DID) string {
	switch name := p.Name(did); {
	case name != "":
		return name
	case p.Short:
		return ShortDID(did)
	}
	return Printable(did) // a relay's record may contain any text
}

// Whole returns the name of a DID, if it has one, and the DID itself.
func (p People) Whole(did didkey.DID) string {
	if name := p.Name(did); name != "" {
		return name + "  " + string(did)
	}
	return Printable(did)
}

// ShortDID returns a DID without what all have in common (did:key:z6Mk), and without its middle: z6MkiTBz…mDooWp.
func ShortDID(did didkey.DID) string {
	const front, back = len("z6Mk") + 4, 6
	text := did.Multibase()
	if _, err := didkey.Parse(string(did)); err != nil {
		return WithoutMiddle(Printable(did), front+1+back)
	}
	return text[:front] + "…" + text[len(text)-back:]
}

// Quoted returns a name that somebody has chosen for himself. The quotes distinguish it from the names of the address
// book.
func Quoted(name string) string {
	if name == "" {
		return ""
	}
	return `"` + Printable(name) + `"`
}
