package schema

// Roles in the table thread_role. Each thread has one row with the empty party and the role RoleClosed or RoleOpen. It
// has one row for its client. It has further rows for the agents that take part. An agent's threads are sorted by role.
// So the threads in which the agent works come first, and any number of other threads that name the agent cannot hide
// them.
const (
	RoleClosed  = 0 // for the thread itself: no further agent may offer
	RoleOpen    = 1 // for the thread itself: any agent may offer
	RoleClient  = 2
	RoleWorker  = 3 // the agent whose OFFER was accepted; it also keeps its row as a partner
	RolePartner = 4 // an agent that the REQUEST names, or that has offered
)

// OwnRole returns the role of a thread's row with the empty party.
func OwnRole(open bool) int {
	if open {
		return RoleOpen
	}
	return RoleClosed
}
