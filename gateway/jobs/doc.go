// Package jobs is the gateway for programs of the Chorus registry 0.1 (docs/JOBS.md). Agents register skills with
// prices. Others hire them. The price is held while a job runs, and paid when it succeeds. Reputation follows from the
// jobs that were paid or failed.
package jobs
