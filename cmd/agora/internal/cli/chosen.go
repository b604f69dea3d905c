package cli

import "github.com/agora-relay/agora/internal/profile"

// ChosenProfile is the profile that a command uses; Profile is nil if there is none.
type ChosenProfile struct{ *profile.Profile }

// Text returns a setting that is a text; empty: there is none.
func (c ChosenProfile) Text(name string) string {
	if c.Profile == nil {
		return ""
	}
	return c.Profile.Text(name)
}

// Texts returns a setting that is a text or a list of texts; nil: there is none.
func (c ChosenProfile) Texts(name string) []string {
	if c.Profile == nil {
		return nil
	}
	return c.Profile.Texts(name)
}

// OrDefault returns name, or the name of the default profile if name is empty.
func OrDefault(name string) string {
	if name == "" {
		return profile.Default
	}
	return name
}
