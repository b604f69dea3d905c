package sim

import (
	"bytes"
	"errors"
	"path/filepath"
	"sync"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// SQLite does all input and output through a VFS, a table of C functions (https://www.sqlite.org/vfs.html). This file
// registers a copy of the default VFS as the new default. Its functions tell the Disk of the folder about each
// operation. A file in any other folder is not affected.

// installed has the disks in use and their open files.
var installed = struct {
	sync.Mutex
	disks   map[string]*Disk    // by folder
	handles map[uintptr]handle  // by the address of SQLite's handle
	methods map[uintptr]uintptr // our copy of each table of file methods
}{disks: map[string]*Disk{}, handles: map[uintptr]handle{}, methods: map[uintptr]uintptr{}}

// handle is an open file.
type handle struct {
	disk     *Disk
	name     string
	original *sqlite3.Tsqlite3_io_methods
}

// Types of the C functions.
type (
	openFunc     = func(tls *libc.TLS, vfs, name, file uintptr, flags int32, flagsOut uintptr) int32
	deleteFunc   = func(tls *libc.TLS, vfs, name uintptr, syncFolder int32) int32
	writeFunc    = func(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32
	truncateFunc = func(tls *libc.TLS, file uintptr, size int64) int32
	closeFunc    = func(tls *libc.TLS, file uintptr) int32
)

// at returns the C value at an address.
func at[T any](address uintptr) *T { return *(**T)(unsafe.Pointer(&address)) }

// function returns the Go function behind a C function pointer of modernc.org/libc.
func function[F any](pointer uintptr) F { return *(*F)(unsafe.Pointer(&struct{ uintptr }{pointer})) }

// pointer returns the C function pointer of f, a function that is declared at package level.
func pointer[F any](f F) uintptr { return *(*uintptr)(unsafe.Pointer(&f)) }

// clone returns the address of a copy of v in C memory, which is never freed.
func clone[T any](tls *libc.TLS, v T) uintptr {
	address := libc.Xmalloc(tls, libc.Tsize_t(unsafe.Sizeof(v)))
	if address == 0 {
		panic("no memory for SQLite's tables of functions")
	}
	*at[T](address) = v
	return address
}

// defaultVFS is the VFS that was the default before register.
var defaultVFS *sqlite3.Tsqlite3_vfs

// register makes our VFS the default, once in a process.
var register = sync.OnceValue(func() error {
	tls := libc.NewTLS()
	defer tls.Close()
	defaultVFS = at[sqlite3.Tsqlite3_vfs](sqlite3.Xsqlite3_vfs_find(tls, 0))
	name, err := libc.CString("agora-sim")
	if err != nil {
		return err
	}
	own := *defaultVFS
	own.FpNext, own.FzName = 0, name
	own.FxOpen, own.FxDelete = pointer(openFile), pointer(deleteFile)
	if rc := sqlite3.Xsqlite3_vfs_register(tls, clone(tls, own), 1); rc != sqlite3.SQLITE_OK {
		return errors.New("SQLite did not take the VFS of the simulation")
	}
	return nil
})

// install lets SQLite's operations in the folder of d go through d.
func install(d *Disk) error {
	if err := register(); err != nil {
		return err
	}
	installed.Lock()
	defer installed.Unlock()
	installed.disks[d.folder] = d
	return nil
}

func uninstall(d *Disk) {
	installed.Lock()
	defer installed.Unlock()
	delete(installed.disks, d.folder)
}

// diskOf returns the disk of the file at path, nil if there is none, and the name of the file in the disk's folder.
func diskOf(path string) (d *Disk, name string) {
	installed.Lock()
	defer installed.Unlock()
	return installed.disks[filepath.Dir(path)], filepath.Base(path)
}

func openFile(tls *libc.TLS, vfs, name, file uintptr, flags int32, flagsOut uintptr) int32 {
	var d *Disk
	var base string
	if name != 0 { // temporary files have no name
		d, base = diskOf(libc.GoString(name))
	}
	if d != nil && d.dead() {
		at[sqlite3.Tsqlite3_file](file).FpMethods = 0
		return sqlite3.SQLITE_CANTOPEN
	}
	rc := function[openFunc](defaultVFS.FxOpen)(tls, vfs, name, file, flags, flagsOut)
	if rc != sqlite3.SQLITE_OK || d == nil {
		return rc
	}
	d.open(base)
	installed.Lock()
	defer installed.Unlock()
	f := at[sqlite3.Tsqlite3_file](file)
	original := at[sqlite3.Tsqlite3_io_methods](f.FpMethods)
	installed.handles[file] = handle{d, base, original}
	if installed.methods[f.FpMethods] == 0 {
		own := *original
		own.FxWrite, own.FxTruncate = pointer(write), pointer(truncate)
		own.FxSync, own.FxClose = pointer(syncFile), pointer(closeFile)
		installed.methods[f.FpMethods] = clone(tls, own)
	}
	f.FpMethods = installed.methods[f.FpMethods]
	return rc
}

func handleOf(file uintptr) handle {
	installed.Lock()
	defer installed.Unlock()
	return installed.handles[file]
}

func closeFile(tls *libc.TLS, file uintptr) int32 {
	h := handleOf(file)
	installed.Lock()
	delete(installed.handles, file)
	installed.Unlock()
	return function[closeFunc](h.original.FxClose)(tls, file)
}

func deleteFile(tls *libc.TLS, vfs, name uintptr, syncFolder int32) int32 {
	remove := func() int32 { return function[deleteFunc](defaultVFS.FxDelete)(tls, vfs, name, syncFolder) }
	d, base := diskOf(libc.GoString(name))
	if d == nil {
		return remove()
	}
	return d.delete(base, remove)
}

func write(tls *libc.TLS, file, data uintptr, n int32, offset int64) int32 {
	h := handleOf(file)
	content := bytes.Clone(unsafe.Slice(at[byte](data), n))
	return h.disk.write(h.name, operation{content, offset}, func(n int) int32 {
		return function[writeFunc](h.original.FxWrite)(tls, file, data, int32(n), offset)
	})
}

func truncate(tls *libc.TLS, file uintptr, size int64) int32 {
	h := handleOf(file)
	return h.disk.truncate(h.name, size, func() int32 {
		return function[truncateFunc](h.original.FxTruncate)(tls, file, size)
	})
}

func syncFile(_ *libc.TLS, file uintptr, _ int32) int32 {
	h := handleOf(file)
	return h.disk.sync(h.name)
}

// open notes that the file with this name exists.
func (d *Disk) open(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		d.files[name] = &file{}
	}
}

// write does o, a write to the file with this name. real writes its first n bytes to the real file. It returns an
// SQLite result code, as the following functions do.
func (d *Disk) write(name string, o operation, real func(n int) int32) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead() {
		return sqlite3.SQLITE_IOERR_WRITE
	}
	f, all := d.files[name], len(o.data)
	if d.isFull(name, o.offset+int64(all)) {
		return sqlite3.SQLITE_FULL
	}
	fault, happens := d.next(writing, name)
	switch {
	case !happens:
		if rc := real(all); rc != sqlite3.SQLITE_OK {
			return rc
		}
		f.pending = append(f.pending, o)
		return sqlite3.SQLITE_OK
	case fault == PowerLoss:
		f.pending = append(f.pending, o)
		d.die(true)
		return sqlite3.SQLITE_IOERR_WRITE
	case fault == Tear, fault == Kill:
		half := operation{o.data[:all/2], o.offset}
		if rc := real(all / 2); rc != sqlite3.SQLITE_OK {
			return rc
		}
		f.pending = append(f.pending, half)
		if fault == Kill {
			d.die(false)
		}
	}
	return sqlite3.SQLITE_IOERR_WRITE
}

// isFull reports whether the file with this name cannot grow to end bytes.
func (d *Disk) isFull(name string, end int64) bool {
	if d.room == 0 {
		return false
	}
	used, err := d.used()
	if err != nil {
		return true
	}
	growth := end - sizeOf(filepath.Join(d.folder, name))
	return growth > 0 && used+growth > d.room
}

// truncate cuts the file with this name to size bytes. real does it to the real file.
func (d *Disk) truncate(name string, size int64, real func() int32) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead() {
		return sqlite3.SQLITE_IOERR_TRUNCATE
	}
	o := operation{nil, size}
	fault, happens := d.next(truncating, name)
	if happens && fault == Refuse {
		return sqlite3.SQLITE_IOERR_TRUNCATE
	}
	if happens && fault == PowerLoss {
		d.files[name].pending = append(d.files[name].pending, o)
		d.die(true)
		return sqlite3.SQLITE_IOERR_TRUNCATE
	}
	if rc := real(); rc != sqlite3.SQLITE_OK {
		return rc
	}
	d.files[name].pending = append(d.files[name].pending, o)
	if happens { // a Kill
		d.die(false)
		return sqlite3.SQLITE_IOERR_TRUNCATE
	}
	return sqlite3.SQLITE_OK
}

// sync makes all operations on the file with this name durable. The real file is not synced: the machine does not fail.
func (d *Disk) sync(name string) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead() {
		return sqlite3.SQLITE_IOERR_FSYNC
	}
	f := d.files[name]
	switch fault, happens := d.next(syncing, name); {
	case !happens:
		for _, o := range f.pending {
			f.durable = o.apply(f.durable)
		}
		f.pending = nil
		return sqlite3.SQLITE_OK
	case fault == FailSync, fault == FailCopy:
		f.durable, f.pending = d.lose(f), nil
	default:
		d.die(fault == PowerLoss)
	}
	return sqlite3.SQLITE_IOERR_FSYNC
}

// delete removes the file with this name, at once and durably. real does it to the real file.
func (d *Disk) delete(name string, real func() int32) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead() {
		return sqlite3.SQLITE_IOERR_DELETE
	}
	fault, happens := d.next(deleting, name)
	if happens {
		if fault != Refuse {
			d.die(fault == PowerLoss)
		}
		return sqlite3.SQLITE_IOERR_DELETE
	}
	rc := real()
	if rc == sqlite3.SQLITE_OK {
		delete(d.files, name)
	}
	return rc
}
