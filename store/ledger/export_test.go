package ledger

// Twin returns a new ledger with l's policy and seed, so both ledgers compute the same bounds.
func (l *Ledger) Twin() *Ledger {
	twin := New(l.policy)
	twin.seed = l.seed
	return twin
}
