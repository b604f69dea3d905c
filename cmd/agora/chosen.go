package main

import "github.com/agora-relay/agora/internal/profile"

// chosenProfile is the profile that a command uses; Profile is nil if there is none.
type chosenProfile struct{ *profile.Profile }

// text returns a setting that is a text; empty: there is none.
func (c chosenProfile) text(name string) string {
	if c.Profile == nil {
		return ""
	}
	return c.Text(name)
}

// orDefault returns name, or the name of the default profile if name is empty.
func orDefault(name string) string {
	if name == "" {
		return profile.Default
	}
	return name
}
