package httpapi

// Status is the table from codes to statuses, for the test that walks it.
var Status = status

// ParsePoll reads the parameters of GET /events, for the fuzz test that has no time to wait for an answer.
var ParsePoll = parsePoll
