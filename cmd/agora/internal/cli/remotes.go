package cli

import (
	"context"
	"errors"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Remotes are the flags of the commands that can talk to several relays (docs/RELAYS.md).
type Remotes struct {
	Relay    []URLText `sep:" " env:"AGORA_RELAY" default:"${relay}" placeholder:"URL" help:"The relay (default: ${relay}). May be repeated, the preferred one first; see docs/RELAYS.md."`
	Discover bool      `help:"Also contact relays that agents and requests name: with https, at public addresses, at most 16 new ones an hour."`
	Private  bool      `env:"AGORA_PRIVATE" help:"Refuse to talk to a relay that shows messages to others than their sender and recipient."`
}

// Many reports whether the command talks to several relays.
func (r Remotes) Many() bool { return len(r.URLs()) > 1 || r.Discover }

// URLs returns the URLs of the relays, each once. An empty list, which an empty AGORA_RELAY gives, stands for the
// default.
func (r Remotes) URLs() (all []string) {
	if len(r.Relay) == 0 {
		return []string{RelayURL}
	}
	for _, one := range r.Relay {
		if !slices.Contains(all, string(one)) {
			all = append(all, string(one))
		}
	}
	return all
}

// First returns the flags of the preferred relay.
func (r Remotes) First() Remote { return Remote{Relay: URLText(r.URLs()[0]), Private: r.Private} }

// Names returns the URLs of the relays for people.
func (r Remotes) Names() string { return strings.Join(r.URLs(), ", ") }

// Relays is what client.Client and client.Network have in common.
type Relays interface {
	Agent(ctx context.Context, id didkey.DID) (client.Agent, error)
	Directory(ctx context.Context, q client.AgentQuery) iter.Seq2[client.Agent, error]
	Outlook(ctx context.Context, opts client.RequestOptions) (client.Outlook, error)
	Thread(ctx context.Context, id string, opener didkey.DID) (*client.Thread, error)
	Stored(ctx context.Context, filter client.Filter) (found []*envelope.Envelope, all bool, err error)
	Post(ctx context.Context, d envelope.Draft) (*envelope.Envelope, client.Receipt, error)
	Follow(ctx context.Context, opts client.FollowOptions, handler func(context.Context, *envelope.Envelope) error) error
	Serve(ctx context.Context, opts client.ServeOptions, handler client.Handler) error
	HandleA2A(turn client.A2AHandler, other client.Handler) client.Handler
	A2ATurn(ctx context.Context, request *envelope.Envelope) (client.A2ATurn, error)
	ChannelDelivery(ctx context.Context, request *envelope.Envelope) (client.ChannelDelivery, error)
	HubMessage(ctx context.Context, request *envelope.Envelope) (client.HubMessage, error)
	Origin(ctx context.Context, request *envelope.Envelope) (client.Origin, error)
	Join(ctx context.Context, o client.JoinOptions) ([]client.Place, error)
	Leave(ctx context.Context, state *client.State) ([]client.Place, error)
}

// Network returns a client of all relays that signs with key.
func (r Remotes) Network(key envelope.Signer, o client.NetworkOptions) (*client.Network, error) {
	o.RequireParties, o.Discover = r.Private, r.Discover
	return client.NewNetwork(r.URLs(), key, o)
}

// Connect returns a client of the relay that signs reads with the key in this file, or reads anonymously if the name is
// empty, and the DID of the key. With several relays, it is a client of all of them, and needs a key. state is what it
// remembers about them; nil: it remembers that in memory.
func (r Remotes) Connect(env Environment, keyFile string, state *client.State) (Relays, didkey.DID, error) {
	if !r.Many() {
		return Reader{Remote: r.First(), Key: keyFile}.Identity(env)
	}
	if keyFile == "" {
		return nil, "", errors.New("several relays need a key: give --key or AGORA_KEY, or name one relay")
	}
	key, err := didkey.Load(keyFile)
	if err != nil {
		return nil, "", err
	}
	n, err := r.Network(key, client.NetworkOptions{State: state, Options: client.Options{Logger: NewLog(env),
		Attempts: Attempts}})
	return n, key.DID(), err
}

// NetworkPoster are the flags of commands that post with a key, at one relay or several.
type NetworkPoster struct {
	Remotes
	Key string `needed:"" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file."`
	Proving
}

// One returns the flags for the preferred relay only.
func (p NetworkPoster) One() Poster {
	return Poster{Identified: Identified{Remote: p.First(), Key: p.Key}, Proving: p.Proving}
}

// Network returns a client of all relays that signs with key. attempts is how often a post is tried; 0: as usual.
func (p NetworkPoster) Network(env Environment, key envelope.Signer, attempts int,
	o client.NetworkOptions) (*client.Network, error) {
	var err error
	if o.Options, err = p.options(env, client.Options{Logger: NewLog(env), Attempts: attempts}); err != nil {
		return nil, err
	}
	o.Evidence = filepath.Dir(p.Key)
	return p.Remotes.Network(key, o)
}

// AskingNetwork is Network for a command that only asks, and never works. Its State is in memory, because several
// commands may ask with one key at the same time. But the state file of agora work says which relays were caught, and
// gets those that this command catches.
func (p NetworkPoster) AskingNetwork(env Environment, key envelope.Signer, o client.NetworkOptions) (*client.Network,
	error) {
	file, err := StateFile(p.Key)
	if err != nil {
		return nil, err
	}
	caught, err := client.CaughtIn(file, key.DID())
	if err != nil {
		return nil, err
	}
	o.State = client.NewState()
	for relay, reason := range caught {
		if err := o.State.Catch(relay, reason); err != nil {
			return nil, err
		}
	}
	o.Caught = func(relay didkey.DID, reason string) {
		if err := noteCaught(file, key.DID(), relay, reason); err != nil {
			env.Say("the relay %s was caught, and the next command will not know it: %v", relay, err)
		}
	}
	return p.Network(env, key, Attempts, o)
}

// Connect returns a client of the relay, or of all relays if there are several, that signs with key.
func (p NetworkPoster) Connect(env Environment, key envelope.Signer) (Relays, error) {
	if !p.Many() {
		return p.One().Connect(env, key)
	}
	return p.AskingNetwork(env, key, client.NetworkOptions{})
}

// StateFile returns the name of the state file for these relays, and creates its folder: with one relay the file of
// that relay, and otherwise one file for all.
func (p NetworkPoster) StateFile() (string, error) {
	if !p.Many() {
		return p.One().PlaceFile(".json")
	}
	return StateFile(p.Key)
}
