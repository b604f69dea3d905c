// Command release builds what a release consists of, and writes it to the folder dist: an archive, a .deb and an .rpm
// for each platform, a bill of materials for each program, and SHA256SUMS. The same commit gives the same bytes: all
// times are the time of the commit, and archives have their files in a fixed order.
//
//	go run ./ci/release                                     everything, for all platforms
//	go run ./ci/release -formats deb -targets linux/amd64   one package
//	go run ./ci/release -sign FILE                          everything, with a signature of SHA256SUMS
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// platforms are the operating systems and architectures of a release.
const platforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

// defaultFlags are the flags of go build. With -trimpath the program does not depend on the folder of the source.
const defaultFlags = "-trimpath"

// release is what is being built.
type release struct {
	version string
	date    time.Time
	out     string // the folder of the results
	work    string // a folder for files on the way
	sign    string // the file of the key that signs the checksums, or ""
	formats []string
	flags   []string // of go build
}

func main() {
	r := release{}
	version := flag.String("version", "", "the version (default: the text of the file VERSION)")
	targets := flag.String("targets", platforms, "the platforms, separated by commas")
	formats := flag.String("formats", "archive,deb,rpm", "what to build, separated by commas")
	flags := flag.String("build-flags", defaultFlags, "flags of go build, separated by spaces")
	flag.StringVar(&r.sign, "sign", "", "a private key of SSH that signs SHA256SUMS (default: it is not signed)")
	flag.StringVar(&r.out, "out", "dist", "the folder of the results; files in it with the same names are replaced")
	flag.Parse()
	r.version, r.formats, r.flags = *version, strings.Split(*formats, ","), strings.Fields(*flags)
	if err := r.run(strings.Split(*targets, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// run builds everything. It runs in the folder of the module.
func (r *release) run(targets []string) (err error) {
	for _, format := range r.formats {
		if !slices.Contains([]string{"archive", "deb", "rpm"}, format) {
			return fmt.Errorf("there is no format %q; the formats are archive, deb and rpm", format)
		}
	}
	if r.version == "" {
		text, err := os.ReadFile("VERSION")
		if err != nil {
			return err
		}
		r.version = strings.TrimSpace(string(text))
	}
	if r.date, err = commitTime(); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "agora-release"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	own, err := r.build(runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return err
	}
	common, err := r.commonFiles(own)
	if err != nil {
		return err
	}
	for _, target := range targets {
		system, arch, found := strings.Cut(target, "/")
		if !found {
			return fmt.Errorf("%q is not a platform such as linux/amd64", target)
		}
		fmt.Println("building", target)
		if err := r.target(system, arch, common); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	if err := writeSums(r.out); err != nil || r.sign == "" {
		return err
	}
	return signSums(r.out, r.sign)
}

// target builds everything for one platform.
func (r *release) target(system, arch, common string) error {
	program, err := r.build(system, arch)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("agora-%s-%s-%s", r.version, system, arch)
	for _, format := range r.formats {
		switch {
		case format == "archive":
			err = r.archive(name, system, program, common)
			if err == nil {
				err = r.bill(program, name)
			}
		case system == "linux":
			err = r.pack(format, arch, program, common)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// build compiles the program for a platform and returns the name of its file. It uses no C code, so it can do so on any
// other platform, and the program needs no libraries. It does not compile the same program twice.
func (r *release) build(system, arch string) (string, error) {
	program := filepath.Join(r.work, system+"-"+arch, "agora")
	if system == "windows" {
		program += ".exe"
	}
	if _, err := os.Stat(program); err == nil {
		return program, nil
	}
	version := "-X github.com/agora-relay/agora/cmd/agora/internal/cli.version=" + r.version
	args := append([]string{"build", "-buildvcs=false", "-ldflags", "-s -w " + version, "-o", program}, r.flags...)
	cmd := exec.Command("go", append(args, "./cmd/agora")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+arch)
	return program, run(cmd)
}

// bill writes the bill of materials of a program.
func (r *release) bill(program, name string) error {
	file, err := os.Create(filepath.Join(r.out, name+".cdx.json"))
	if err != nil {
		return err
	}
	defer file.Close()
	cmd := exec.Command("go", "run", "./ci/sbom", "-version", r.version, program)
	cmd.Stdout = file
	if err := run(cmd); err != nil {
		return err
	}
	return file.Close()
}

// commitTime returns the time of the last commit, or of SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/
// source-date-epoch) if it is set.
func commitTime() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		out, err := exec.Command("git", "log", "-1", "--format=%ct").Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("git does not say when the last commit was made (%w); set SOURCE_DATE_EPOCH", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH must be a number of seconds: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// run runs a command and shows what it prints, unless the command has a place for that.
func run(cmd *exec.Cmd) error {
	if cmd.Stdout == nil {
		cmd.Stdout = os.Stdout
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}
