// Package cluster contains only tests. They run a relay of three nodes over a PostgreSQL primary with two standbys,
// all on this machine, and cause faults: they kill any process, cut nodes off from the database, promote a standby and
// restart nodes. An oracle checks that no acknowledged message is lost, none is stored twice, and that all nodes show
// the same sequence.
//
// The tests have the build tag cluster and need PostgreSQL 15 in /usr/lib/postgresql/15/bin. As root they run it as the
// user nobody, because it refuses to run as root. AGORA_CLUSTER_TIME is how long faults are caused. By default
// each kind comes once. make nightly sets it to 20m.
package cluster
