package serve

import (
	"testing"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/relay"
)

// TestLimitFlags checks that each limit of a Gate has a flag, whose default is that of the table of limits.
func TestLimitFlags(t *testing.T) {
	var flags limitFlags
	parser, err := kong.New(&flags, kong.NamedMapper("bytes", kong.MapperFunc(cli.DecodeBytes)))
	if err == nil {
		_, err = parser.Parse(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	set, want := flags.limits(), relay.Limits{}.WithDefaults()
	filled := set.WithDefaults()
	for _, row := range relay.LimitTable() {
		switch {
		case row.Rate != nil:
			if row.Rate(&set).PerSecond == 0 || *row.Rate(&filled) != *row.Rate(&want) {
				t.Errorf("%s: the flags set %v, and the table has %v", row.Name, *row.Rate(&set), *row.Rate(&want))
			}
		case row.Count != nil:
			if *row.Count(&set) != *row.Count(&want) {
				t.Errorf("%s: the flags set %d, and the table has %d", row.Name, *row.Count(&set), *row.Count(&want))
			}
		}
	}
	if inbox := flags.inbox(); inbox != relay.DefaultInbox {
		t.Errorf("the flags for the inbox set %v, and the default is %v", inbox, relay.DefaultInbox)
	}
}
