//go:build python && unix

package recipes

import (
	"os"
	"path/filepath"
	"testing"
)

// python plays python3 and what it puts into a virtual environment: the python is Debian's, which has the library
// cryptography, and finds the package in the source. So pip has nothing to do; make packages installs the wheel.
const python = `#!/bin/sh
set -e
if [ "$1 $2" = '-m venv' ]; then
  mkdir -p "$3/bin"
  cat > "$3/bin/python" <<'EOF'
#!/bin/sh
export PYTHONUTF8=1 PYTHONUNBUFFERED=1 PYTHONPATH="$AGORA_SRC/sdk/python/src"
exec /usr/bin/python3 "$@"
EOF
  cat > "$3/bin/pip" <<'EOF'
#!/bin/sh
[ "$1" = install ] && test -f "$2/pyproject.toml"
EOF
  chmod +x "$3/bin/python" "$3/bin/pip"
else
  exec /usr/bin/python3 "$@"
fi
`

// TestPythonRecipes follows the sections with Python. make python runs it.
func TestPythonRecipes(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "python3"), []byte(python), 0o700); err != nil {
		t.Fatal(err)
	}
	follow(t, "python", inScripts, "PATH="+folder+":"+binFolder+":"+os.Getenv("PATH"))
}
