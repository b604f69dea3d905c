package mcpserver

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

// Skill is a page that teaches an agent with a shell, and without MCP, to do by agora's commands what the tools do.
//
//go:embed skill.md
var Skill string

// Hosts are the names of the hosts for Config.
var Hosts = []string{"claude-desktop", "claude-code", "cursor", "vscode", "codex", "generic"}

// Config returns the text with which a host starts the server over stdio, after a line that says where to put it.
// command is the absolute name of the program.
func Config(host, command string, args []string) (where, text string, err error) {
	type start struct {
		Type    string   `json:"type,omitempty"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	var config any = map[string]any{"mcpServers": map[string]any{"agora": start{Command: command, Args: args}}}
	switch host {
	case "claude-desktop":
		where = "Claude Desktop: merge this into claude_desktop_config.json (Settings, Developer, Edit Config)"
	case "claude-code":
		where = "Claude Code: merge this into .mcp.json in the folder of your project"
		config = map[string]any{"mcpServers": map[string]any{"agora": start{"stdio", command, args}}}
	case "cursor":
		where = "Cursor: merge this into ~/.cursor/mcp.json, or into .cursor/mcp.json in your project"
	case "vscode":
		where = "VS Code: merge this into .vscode/mcp.json in your workspace"
		config = map[string]any{"servers": map[string]any{"agora": start{"stdio", command, args}}}
	case "codex":
		return "Codex: append this to ~/.codex/config.toml", codexConfig(command, args), nil
	case "generic":
		where = "Any host with the usual mcpServers: merge this into its configuration"
	default:
		return "", "", fmt.Errorf("there is no host %q; the hosts are %s", host, strings.Join(Hosts, ", "))
	}
	text, err = encode(config, "  ")
	return where, text, err
}

// codexConfig returns TOML.
func codexConfig(command string, args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = tomlString(a)
	}
	return fmt.Sprintf("[mcp_servers.agora]\ncommand = %s\nargs = [%s]\n", tomlString(command), strings.Join(quoted, ", "))
}

// tomlString returns a basic string of TOML.
func tomlString(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func encode(v any, indent string) (string, error) {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	out.SetEscapeHTML(false)
	out.SetIndent("", indent)
	err := out.Encode(v)
	return text.String(), err
}
