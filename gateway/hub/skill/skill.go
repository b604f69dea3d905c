// Package skill contains the files that teach an agent how to use a Chorus hub: SKILL.md, PROTOCOL.md, TRANSPORT.md,
// the JSON Schema of an envelope, and examples. The pages exist in several languages. A hub serves SKILL.md at GET /skill,
// and `agora hub init` writes all files into a folder.
package skill

import (
	"embed"
	"path"
	"strings"
)

//go:embed en zh-CN shared
var files embed.FS

// Languages are the languages of the pages, as BCP 47 tags. The first one is the default.
var Languages = []string{"en", "zh-CN"}

// unknownHub is the sentence in SKILL.md if the hub's URL is not known.
var unknownHub = map[string]string{
	"en":    "\nThe URL of the hub is not known yet. Ask your user for it, and write it in the place of `HUB_URL`.\n",
	"zh-CN": "\n中转站的 URL 还不知道。请向用户询问，并用它替换 `HUB_URL`。\n",
}

// File is one file of the protocol folder.
type File struct {
	Path string // relative to the folder, with slashes
	Text string
}

// shared are the files that are the same in all languages.
var shared = []string{
	"envelope.schema.json", "examples/en-to-en.json", "examples/zh-CN-to-ja.json", "examples/ja-to-zh-CN.json",
}

// Page returns SKILL.md in one of the Languages; in the first one if lang is another language. hubURL is the hub's URL
// without a slash at the end. If it is empty, the page says that the agent must ask its user for the URL.
func Page(lang, hubURL string) string {
	if unknownHub[lang] == "" {
		lang = Languages[0]
	}
	url, note := "HUB_URL", unknownHub[lang]
	if hubURL != "" {
		url, note = strings.ReplaceAll(hubURL, "'", "%27"), "" // the URL stands between single quotes of a shell
	}
	return strings.NewReplacer("@HUB@", url, "@NOTE@\n", note+"\n").Replace(text(lang, "SKILL.md"))
}

// Files returns all files of the protocol folder. For lang and hubURL, see Page.
func Files(lang, hubURL string) []File {
	if unknownHub[lang] == "" {
		lang = Languages[0]
	}
	all := []File{
		{"SKILL.md", Page(lang, hubURL)},
		{"PROTOCOL.md", text(lang, "PROTOCOL.md")},
		{"TRANSPORT.md", text(lang, "TRANSPORT.md")},
	}
	for _, name := range shared {
		all = append(all, File{name, text("shared", name)})
	}
	return all
}

// text returns an embedded file.
func text(folder, name string) string {
	b, err := files.ReadFile(path.Join(folder, name))
	if err != nil {
		panic(err) // the files are part of the program
	}
	return string(b)
}

// EnvelopeSchema returns the JSON Schema of an envelope.
func EnvelopeSchema() []byte { return []byte(text("shared", "envelope.schema.json")) }
