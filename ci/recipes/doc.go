// Package recipes contains only tests. They do what the docs for users say: each section of docs/COOKBOOK.md, and of
// other pages with commands, is followed as a reader would, in an empty folder, with the built program and a new relay.
//
// What a block of code is for:
//
//   - ```sh: commands for the reader's terminal. Each must succeed. What they set stays for the next such block.
//   - ```sh fails: the same, but each line is a command that must fail.
//   - ```sh terminal: commands for a terminal of their own. They run until the section ends, and are then interrupted.
//   - ```output: what the block before prints. Each line of it must come, in this order; … stands for any text. After
//     a terminal block the test waits for it.
//   - a block whose first line is a comment with the name of a file, such as // agent.mjs: the content of that file.
//     A script may have its #! line before that.
//   - ```json and others: only shown.
//
// A section is followed twice: by shells that run scripts, and by a person who pastes each block into a terminal with 80
// columns. A program that reads standard input then gets the lines after its own. Sections that show what only a terminal
// shows are followed only there.
//
// The relay of the docs, http://127.0.0.1:8789, is replaced by the relay of the test. Sections with JavaScript or Python
// have the build tags javascript and python, because they need more than Go and a shell.
package recipes
