package mcpserver_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver"
)

// TestConfig checks that each host reads the command and its arguments back from its configuration, whatever characters
// they have.
func TestConfig(t *testing.T) {
	const command = `C:\Program Files\"agora"` + "\x01\x7f\u202eé.exe"
	args := []string{"mcp", "--key", "a b\n'c'\t<&>.key"}
	type start struct {
		Command string
		Args    []string
	}
	for _, host := range mcpserver.Hosts {
		where, text, err := mcpserver.Config(host, command, args)
		if err != nil || where == "" {
			t.Fatalf("%s: %q, %v", host, where, err)
		}
		var config struct {
			MCPServers map[string]start `json:"mcpServers" toml:"mcp_servers"`
			Servers    map[string]start
		}
		if host == "codex" {
			_, err = toml.Decode(text, &config)
		} else {
			err = json.Unmarshal([]byte(text), &config)
		}
		got := config.MCPServers["agora"]
		if host == "vscode" {
			got = config.Servers["agora"]
		}
		if err != nil || got.Command != command || !slices.Equal(got.Args, args) {
			t.Errorf("%s: %v, %q in %s", host, err, fmt.Sprint(got), text)
		}
	}
	if _, _, err := mcpserver.Config("emacs", command, args); err == nil {
		t.Error("an unknown host has a configuration")
	}
}
