package sim

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Disk is a disk with the database files of one folder. The files themselves are real, and are what the process sees.
// Disk also keeps what would be left of them after a power loss: for each file its content at the last sync, and the
// operations since then.
type Disk struct {
	folder string
	died   chan struct{} // closed at the Fault that ends the disk

	mu         sync.Mutex
	random     *rand.Rand
	files      map[string]*file // by name, without the folder
	operations int              // so far
	plan       []planned
	occurred   int   // faults so far
	room       int64 // bytes that the files may have; 0: no limit
	image      map[string][]byte
	mark       []byte // of the database, when the disk died
}

// file is what a disk knows about one file.
type file struct {
	durable []byte      // content at the last sync, as the disk has it
	pending []operation // writes and truncations since then; the disk may have done any of them, in any order
}

// operation is a write of data at offset. If data is nil, it is a truncation to offset bytes.
type operation struct {
	data   []byte
	offset int64
}

// Fault is something that happens to one operation.
type Fault int

// The faults.
const (
	Refuse    Fault = iota // a write, truncation or deletion does nothing and fails
	Tear                   // a write stores its first half and fails
	FailSync               // a sync fails, and the disk drops some pending operations, as Linux does; later syncs succeed
	FailCopy               // as FailSync, for a sync of the database, which ends a checkpoint
	Kill                   // the process ends: what it wrote stays, the operation is half done, all later ones fail
	PowerLoss              // the disk keeps some pending operations and parts of others; all later ones fail
	faults                 // how many there are
)

func (f Fault) String() string {
	return [...]string{"Refuse", "Tear", "FailSync", "FailCopy", "Kill", "PowerLoss"}[f]
}

// planned is a Fault of the first operation that it can happen to, from the operation with number at.
type planned struct {
	at    int
	fault Fault
}

// kind is the kind of an operation.
type kind int

const (
	writing kind = iota
	truncating
	syncing
	deleting
)

// fits reports whether f can happen to an operation of this kind on the file with this name.
func (f Fault) fits(k kind, name string) bool {
	switch f {
	case Refuse:
		return k != syncing
	case Tear:
		return k == writing
	case FailSync:
		return k == syncing
	case FailCopy:
		return k == syncing && name == database
	}
	return true
}

// database is the name of the database in a folder.
const database = "agora.db"

// sqliteFiles are the files that SQLite reads when it opens the database.
var sqliteFiles = []string{database, database + "-wal", database + "-journal"}

// sector is how many bytes a disk writes as a whole.
const sector = 512

// NewDisk returns the disk of the database files in folder. What the files have is durable. No program may have them
// open. From now on, SQLite's operations in the folder go through the disk, until Close. random decides what is lost.
func NewDisk(folder string, random *rand.Rand) (*Disk, error) {
	d := &Disk{folder: folder, died: make(chan struct{}), random: random, files: map[string]*file{}}
	for _, name := range sqliteFiles {
		content, err := os.ReadFile(filepath.Join(folder, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		d.files[name] = &file{durable: content}
	}
	if err := install(d); err != nil {
		return nil, err
	}
	return d, nil
}

// Close ends the simulation. SQLite must have closed the files.
func (d *Disk) Close() { uninstall(d) }

// Plan lets f happen to an operation: to the first that it fits, after that many others.
func (d *Disk) Plan(after int, f Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan = append(d.plan, planned{d.operations + after, f})
}

// Calm removes all faults that are planned.
func (d *Disk) Calm() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plan = nil
}

// Occurred returns how many faults have happened.
func (d *Disk) Occurred() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.occurred
}

// Rewrote notes that the file at path was written again and synced, outside of SQLite.
func (d *Disk) Rewrote(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	content, err := os.ReadFile(path)
	if f := d.files[filepath.Base(path)]; f != nil && err == nil && !d.dead() {
		f.durable, f.pending = content, nil
	}
}

// Died returns a channel that is closed when a Kill or a PowerLoss happens.
func (d *Disk) Died() <-chan struct{} { return d.died }

// dead reports whether a Kill or a PowerLoss has happened.
func (d *Disk) dead() bool {
	select {
	case <-d.died:
		return true
	default:
		return false
	}
}

// SetRoom limits how many more bytes the folder may have. A write that needs more fails, because the disk is full. A
// negative number removes the limit.
func (d *Disk) SetRoom(more int64) error {
	used, err := d.used()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.room = used + more; more < 0 {
		d.room = 0
	}
	return nil
}

// used returns how many bytes the folder's files have.
func (d *Disk) used() (sum int64, err error) {
	entries, err := os.ReadDir(d.folder)
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since
		}
		if err != nil {
			return 0, err
		}
		sum += info.Size()
	}
	return sum, err
}

// sizeOf returns the size of the file at path, 0 if there is none.
func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// next counts an operation on the file with this name and returns the planned fault that happens to it, if any.
func (d *Disk) next(k kind, name string) (f Fault, happens bool) {
	d.operations++
	i := slices.IndexFunc(d.plan, func(p planned) bool { return p.at < d.operations && p.fault.fits(k, name) })
	if i < 0 {
		return 0, false
	}
	f = d.plan[i].fault
	d.plan = slices.Delete(d.plan, i, i+1)
	d.occurred++
	return f, true
}

// die ends the disk. With lossy, it decides what the disk has kept.
func (d *Disk) die(lossy bool) {
	// The mark is no file of SQLite. It is not synced at once, but the store needs only that it is not ahead.
	d.mark, _ = os.ReadFile(filepath.Join(d.folder, database+".mark")) // none before the first start has ended
	if lossy {
		d.image = map[string][]byte{}
		for name, f := range d.files {
			d.image[name] = d.lose(f)
		}
	}
	close(d.died)
}

// lose returns what the disk has of f if it does not finish the pending operations.
func (d *Disk) lose(f *file) []byte {
	content := bytes.Clone(f.durable)
	keep := []float64{0, 0.5, 0.9, 1}[d.random.IntN(4)] // the probability that an operation was done
	for _, o := range f.pending {
		switch {
		case len(o.data) <= sector || d.random.IntN(3) > 0:
			if d.random.Float64() < keep {
				content = o.apply(content)
			}
		default: // torn: each sector is decided for itself
			for at := 0; at < len(o.data); at += sector {
				if d.random.Float64() < keep {
					part := o.data[at:min(at+sector, len(o.data))]
					content = operation{part, o.offset + int64(at)}.apply(content)
				}
			}
		}
	}
	return content
}

// apply returns content after o.
func (o operation) apply(content []byte) []byte {
	end := o.offset + int64(len(o.data))
	if o.data == nil {
		end = min(o.offset, int64(len(content)))
		return content[:end:end]
	}
	if missing := end - int64(len(content)); missing > 0 {
		content = append(content, make([]byte, missing)...)
	}
	copy(content[o.offset:], o.data)
	return content
}

// Restore writes the files of a disk that has died to a new folder, as a restarted machine finds them. SQLite must have
// closed them.
func (d *Disk) Restore(to string) error {
	if !d.dead() {
		return errors.New("the disk has not died")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	image := d.image
	if image == nil { // a Kill: everything that was written is there
		image = map[string][]byte{}
		for name := range d.files {
			content, err := os.ReadFile(filepath.Join(d.folder, name))
			if err != nil {
				return err
			}
			image[name] = content
		}
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for name, content := range image {
		if err := os.WriteFile(filepath.Join(to, name), content, 0o600); err != nil {
			return err
		}
	}
	if d.mark == nil {
		return nil
	}
	return os.WriteFile(filepath.Join(to, database+".mark"), d.mark, 0o600)
}
