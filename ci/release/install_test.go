//go:build packages

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/markdown"
)

// A machine for these tests is a copy of this system: an overlay, so that nothing of this system changes, in which
// systemd runs as the first process, in its own namespaces and with no network but loopback.

// prelude gives the commands of docs/INSTALL.md what they need. apt asks nothing. rpm does the work of dnf, because the
// machine has the packages of Debian.
const prelude = `set -euo pipefail
export HOME=/root LC_ALL=C.UTF-8
sudo() { if [ "$1" = -u ]; then shift; local user=$1; shift; runuser -u "$user" -- "$@"; else "$@"; fi; }
dnf() { local verb=$1; shift; case $verb in install) rpm --force-debian --nodeps --nosignature -i "$@";; remove) rpm --nodeps -e "$@";; esac; }
echo 'APT::Get::Assume-Yes "true";' > /etc/apt/apt.conf.d/99-test
rm -f /usr/sbin/policy-rc.d # images of containers have it, so that packages start nothing
fails() { if "$@" > /dev/null 2>&1; then echo "no failure: $*"; exit 1; fi; }
cd "$WORK"
set -x
`

// running checks the process of the relay: its user, its rights, and that nobody else can read its data.
const running = `
pid=$(systemctl show --property MainPID --value agora)
[ "$(stat -c %U /proc/$pid)" = agora ]
grep -q '^Seccomp:.2$' /proc/$pid/status
grep -q '^NoNewPrivs:.1$' /proc/$pid/status
grep -q '^CapEff:.0000000000000400$' /proc/$pid/status # CAP_NET_BIND_SERVICE
[ "$(stat -c '%U %a' /var/lib/agora)" = 'agora 700' ]
fails runuser -u nobody -- ls /var/lib/agora
fails runuser -u nobody -- cat /etc/agora/agora.toml
`

// post posts a message; posted checks that the relay still has it.
const (
	post   = "agora keygen alice.key\nagora send request --key alice.key --thread t-1 --intent echo\n"
	posted = "agora thread t-1 | grep -q PENDING\n"
)

// machine runs a script on a machine. variables are added to its environment.
func machine(t *testing.T, script string, variables ...string) {
	t.Helper()
	folder, err := os.MkdirTemp("/dev/shm", "agora-machine") // the upper folder of an overlay cannot be in the lower one
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(folder, "root")
	for _, name := range []string{"upper", "work", "root"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	output(t, "mount", "-t", "overlay", "overlay", "-o",
		fmt.Sprintf("lowerdir=/,upperdir=%s/upper,workdir=%s/work", folder, folder), root)
	t.Cleanup(func() {
		output(t, "umount", root)
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	// Files in /run and /tmp would be hidden in the machine.
	if err := os.CopyFS(filepath.Join(root, "test"), os.DirFS(built.out)); err != nil {
		t.Fatal(err)
	}
	unit := `[Unit]
After=basic.target
Requires=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
TimeoutStartSec=15min
Environment=WORK=/test ` + strings.Join(variables, " ") + `
ExecStart=/bin/bash /test/script
ExecStopPost=/bin/sh -c 'echo $EXIT_STATUS > /test/status; journalctl --no-pager -u agora > /test/log'
StandardOutput=file:/test/output
StandardError=inherit
`
	for name, text := range map[string]string{"test/script": prelude + script, "etc/systemd/system/test.service": unit} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	out, _ := exec.CommandContext(ctx, "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--private-network",
		"--link-journal=no", "--console=pipe", "-D", root, "--boot", "systemd.unit=test.service").CombinedOutput()
	// systemd-nspawn also fails because of its own folders that it cannot remove. So the script's status counts.
	status, err := os.ReadFile(filepath.Join(root, "test/status"))
	if err != nil || string(status) != "0\n" {
		printed, _ := os.ReadFile(filepath.Join(root, "test/output"))
		log, _ := os.ReadFile(filepath.Join(root, "test/log"))
		t.Errorf("the script ended with %q (%v)\n%s\nsystemd-nspawn:\n%s\nthe relay's log:\n%s", status, err, printed, out, log)
	}
}

// document is docs/INSTALL.md, with the architecture of this machine.
type document struct {
	sections map[string][]string // the blocks of shell commands, by heading
	used     map[string]int      // how many of them were run
}

func installDocument(t *testing.T) *document {
	t.Helper()
	text, err := os.ReadFile("docs/INSTALL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rpm, _ := strings.Cut(rpmName(), built.version)
	names := strings.NewReplacer("-1_amd64.deb", "-1_"+runtime.GOARCH+".deb", "-1.x86_64.rpm", rpm,
		"-linux-amd64", "-linux-"+runtime.GOARCH)
	page, err := markdown.Parse(names.Replace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	d := &document{sections: map[string][]string{}, used: map[string]int{}}
	for _, section := range page.Sections {
		d.sections[section.Heading] = section.Code("sh")
	}
	return d
}

// next returns the next block of a section.
func (d *document) next(t *testing.T, heading string) string {
	t.Helper()
	i := d.used[heading]
	if d.used[heading]++; i >= len(d.sections[heading]) {
		t.Fatalf("docs/INSTALL.md has no block %d of commands in %q", i+1, heading)
	}
	return d.sections[heading][i]
}

// TestInstall does on fresh machines what docs/INSTALL.md says: each command of it, in the order of a reader.
func TestInstall(t *testing.T) {
	d := installDocument(t)
	t.Run("deb", func(t *testing.T) {
		script := d.next(t, "Debian and Ubuntu") + running + post + d.next(t, "Debian and Ubuntu") + `
grep -q post-rate-ip /etc/agora/agora.toml
until journalctl --no-pager -u agora | grep post-rate-ip; do sleep .1; done # the journal gets lines a little later
man --path; man -w agora-serve
test -s /usr/share/bash-completion/completions/agora -a -s /usr/share/doc/agora/copyright
systemctl is-enabled agora

# The ports of the web.
cp -p /etc/agora/agora.toml kept.toml
echo 'addr = "127.0.0.1:443"' >> /etc/agora/agora.toml
systemctl restart agora
agora health --relay http://127.0.0.1:443
cp -p kept.toml /etc/agora/agora.toml
systemctl restart agora

# After a crash it starts again.
kill -9 "$(systemctl show --property MainPID --value agora)"
for _ in $(seq 100); do agora health && break || sleep 0.2; done
` + posted + d.next(t, "Upgrade") + `
agora version | grep -q ` + built.next + `
[ "$(stat -c '%U %a' /etc/agora/agora.toml)" = 'root 640' ]
grep -q post-rate-ip /etc/agora/agora.toml
` + running + posted + d.next(t, "Upgrade") + `
agora version | grep -q ` + built.version + `
` + posted + `
# An upgrade does not start what the operator has stopped and disabled.
systemctl disable --now agora
apt install ./` + debName(built.next) + `
fails systemctl is-active agora
fails systemctl is-enabled agora
systemctl enable --now agora
` + strings.Replace(d.next(t, "Uninstall"), "sudo apt purge", `
fails systemctl is-active agora
fails agora version
test -s /var/lib/agora/agora.db -a -s /etc/agora/agora.toml
apt install ./`+debName(built.version)+"\n"+posted+`
sudo apt purge`, 1) + `
fails ls /var/lib/agora
fails ls /etc/agora
getent passwd agora
`
		machine(t, script)
	})
	t.Run("rpm", func(t *testing.T) {
		machine(t, d.next(t, "Fedora, RHEL and openSUSE")+running+post+posted+`
rpm --nosignature -V --nodeps agora
dnf remove agora
fails systemctl is-active agora
fails agora version
test -s /var/lib/agora/agora.db
`)
	})
	t.Run("archive", func(t *testing.T) {
		machine(t, strings.Replace(d.next(t, "Verify the files"), "cd dist", "", 1)+d.next(t, "Linux, from the archive")+`
man -w agora-serve | grep -q /usr/local
`+d.next(t, "Linux, from the archive")+running+post+posted+d.next(t, "Uninstall")+`
fails agora version
fails systemctl is-active agora
test -s /var/lib/agora/agora.db
`)
	})
	t.Run("source", func(t *testing.T) {
		folder, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		// The packages that the machine builds must be those that the tests have built.
		machine(t, "cd "+folder+"\n"+d.next(t, "")+"cmp dist/"+debName(built.version)+" $WORK/"+debName(built.version)+`
cmp dist/`+rpmName()+" $WORK/"+rpmName()+"\n"+d.next(t, "From source"), goVariables(t)...)
	})
	for heading, blocks := range d.sections {
		if d.used[heading] != len(blocks) {
			t.Errorf("%q: %d of %d blocks of commands were run", heading, d.used[heading], len(blocks))
		}
	}
}

// goVariables are the variables with which Go on a machine finds what is downloaded and compiled.
func goVariables(t *testing.T) []string {
	t.Helper()
	date, err := commitTime() // git refuses folders of other users
	if err != nil {
		t.Fatal(err)
	}
	downloads := filepath.Join(strings.TrimSpace(output(t, "go", "env", "GOMODCACHE")), "cache", "download")
	all := []string{"GOPROXY=file://" + downloads, "GOSUMDB=off", fmt.Sprintf("SOURCE_DATE_EPOCH=%d", date.Unix()), "PATH=" + os.Getenv("PATH")}
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH"} {
		all = append(all, name+"="+strings.TrimSpace(output(t, "go", "env", name)))
	}
	return append(all, "'GOFLAGS="+os.Getenv("GOFLAGS")+"'", "'BUILD_FLAGS="+strings.Join(buildFlags(), " ")+"'")
}
