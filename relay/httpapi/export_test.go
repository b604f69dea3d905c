package httpapi

// Status is the table from codes to statuses, for the test that walks it.
var Status = status
