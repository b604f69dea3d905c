package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// SecretSuffix follows the name of a variable whose value is the name of a file with the setting.
const SecretSuffix = "_FILE"

// secretFile returns the value of a secret setting from a file. It is the file that the variable with SecretSuffix
// names, or else a credential of systemd: its name is agora and the setting's name, such as agora.store. source says
// which file it was; empty: there is none.
func secretFile(name string) (text, source string, err error) {
	variable := Variable(name) + SecretSuffix
	path := os.Getenv(variable)
	source = "file of " + variable
	if folder := os.Getenv("CREDENTIALS_DIRECTORY"); path == "" && folder != "" {
		path, source = filepath.Join(folder, "agora."+name), "credential agora."+name
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", "", nil
		}
	}
	if path == "" {
		return "", "", nil
	}
	file, err := os.Open(path)
	if err != nil {
		return "", "", fmt.Errorf("the %s: %w", source, err)
	}
	defer file.Close() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxConfigBytes))
	if text = strings.TrimSpace(string(content)); err == nil && text == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", "", fmt.Errorf("the %s, %s: %w", source, path, err)
	}
	return text, source, nil
}
