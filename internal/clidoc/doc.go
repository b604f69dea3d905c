// Package clidoc derives from a command line what packages have besides the program: man pages, and the completion of
// words in a shell. The command line is a model of github.com/alecthomas/kong, so pages and completion always have the
// commands and the flags that the program has.
package clidoc
