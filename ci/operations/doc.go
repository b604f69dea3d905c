// Package operations contains only tests. They run a relay as docs/OPERATING.md says, with the programs that operators
// use: an ACME certificate authority, nginx, Caddy, Prometheus and systemd. Each shell command in that page is run, and
// each configuration in it is used.
//
// The tests have the build tag operations, because they need programs that make test does not need. They run with make
// operations. They fail, and are not skipped, if a program is missing. ci/install installs the programs.
package operations
