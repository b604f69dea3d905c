package gateway

import "github.com/agora-relay/agora/relay"

var counterTable = Table{Name: "gate_counter", Key: 1, Columns: []string{"name", "value"}}

// Next returns the next number of a counter: 1, 2, 3 and so on. If tx is undone, the number is given again. After the
// restore of a backup the counter skips 1,000,000 numbers (G-30).
func Next(tx relay.ExtTx, counter string) (int64, error) {
	n := int64(0)
	err := tx.Query(func(scan func(...any) error) error { return scan(&n) },
		"SELECT value FROM gate_counter WHERE name = ?", counter)
	if err != nil {
		return 0, err
	}
	n++
	return n, setCounter(tx, counter, n)
}

func setCounter(tx relay.ExtTx, name string, n int64) error {
	_, err := tx.Exec("INSERT INTO gate_counter (name, value, sum) VALUES (?, ?, ?) "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value, sum = excluded.sum", name, n, Sum("gate_counter", name, n))
	return err
}

// DropCounter removes a counter whose numbers nobody will see again.
func DropCounter(tx relay.ExtTx, name string) error {
	return Exec(tx, "DELETE FROM gate_counter WHERE name = ?", name)
}

// skipped is how many numbers a counter skips after the restore of a backup. The original database may have given that
// many numbers since the backup.
const skipped = 1_000_000

// skip makes all counters skip numbers.
func skip(tx relay.ExtTx) error {
	counters := map[string]int64{}
	err := tx.Query(func(scan func(...any) error) error {
		var name string
		var n int64
		err := scan(&name, &n)
		counters[name] = n
		return err
	}, "SELECT name, value FROM gate_counter")
	if err != nil {
		return err
	}
	for name, n := range counters {
		if err := setCounter(tx, name, n+skipped); err != nil {
			return err
		}
	}
	return nil
}
