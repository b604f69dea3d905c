package cli

import (
	"os"

	"golang.org/x/sys/windows"
)

// TerminalWidth returns how many columns a terminal has; 0: unknown.
func TerminalWidth(f *os.File) int {
	var info windows.ConsoleScreenBufferInfo
	if windows.GetConsoleScreenBufferInfo(windows.Handle(f.Fd()), &info) != nil {
		return 0
	}
	return int(info.Window.Right) - int(info.Window.Left) + 1
}

// DropTyped drops what was typed at a terminal and is not read yet.
func DropTyped(f *os.File) error { return windows.FlushConsoleInputBuffer(windows.Handle(f.Fd())) }
