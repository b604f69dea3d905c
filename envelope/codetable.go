package envelope

import "slices"

// CodeInfo is a row of the table of codes.
type CodeInfo struct {
	Code      Code `json:"code"`
	Status    int  `json:"status"`    // the HTTP status of the refusal
	Retryable bool `json:"retryable"` // the same request, sent again later byte for byte, may succeed
	// Settles says that a post with this answer was not stored in an earlier attempt with the same bytes. A relay looks
	// for duplicates before it applies the rules of the thread (PROTOCOL §3), so a refusal by these rules proves it. A
	// refusal because of the time or a rate proves nothing, because the relay checks those first.
	Settles bool `json:"settles"`
	// MovedOn says that an agent gets this code if the thread has changed since the agent has read it. The agent reads
	// the thread again and does not report a failure.
	MovedOn bool `json:"movedOn"`
	// OfMessage says that a post is refused with the code because of the message itself or of earlier messages. Each such
	// code has a vector in package testvectors.
	OfMessage bool   `json:"ofMessage"`
	Text      string `json:"text"` // when a relay answers with the code; Markdown for PROTOCOL §5
}

// codeTable is the only list of codes (PROTOCOL §5). The documents, the schemas and the packages in other languages get
// it through testvectors/protocol.json.
var codeTable = []CodeInfo{
	{Code: CodeInvalidRequest, Status: 400, OfMessage: true, Settles: true,
		Text: "The body or a parameter is malformed, or a member has a value that it cannot have."},
	{Code: CodeUnsupportedVersion, Status: 400, OfMessage: true,
		Text: "The envelope's version is not \"1.0\"."},
	{Code: CodeInvalidDID, Status: 400, OfMessage: true,
		Text: "An identifier is not a did:key of a usable Ed25519 key."},
	{Code: CodeStaleTimestamp, Status: 400, OfMessage: true,
		Text: "The ts is five minutes or more from the relay's clock, which `details.now` has. Sign again with the right time."},
	{Code: CodeExpired, Status: 400, OfMessage: true,
		Text: "The message has expired by its ts and ttl."},
	{Code: CodeInvalidSignature, Status: 403, OfMessage: true,
		Text: "The signature does not verify under the sender's key."},
	{Code: CodeForbidden, Status: 403, OfMessage: true, Settles: true, MovedOn: true,
		Text: "The sender may not do this: it is not a party of the thread, the message is for another relay, or the request comes from a web page of another origin."},
	{Code: CodeUnauthorized, Status: 401,
		Text: "The read needs a signature, or its token is not valid (§8). `details.reason` says why, and the header `WWW-Authenticate` names the scheme."},
	{Code: CodeThreadNotFound, Status: 404, OfMessage: true, Settles: true, MovedOn: true,
		Text: "No thread with this id is here, or none that the sender may see."},
	{Code: CodeAgentNotFound, Status: 404,
		Text: "No unexpired MANIFEST of this agent is here."},
	{Code: CodeNotFound, Status: 404,
		Text: "There is nothing at this path."},
	{Code: CodeMethodNotAllowed, Status: 405,
		Text: "The path takes other methods, which the header `Allow` lists."},
	{Code: CodeDuplicateID, Status: 409, OfMessage: true, Settles: true, MovedOn: true,
		Text: "The sender has used the id for another message."},
	{Code: CodeInvalidTransition, Status: 409, OfMessage: true, Settles: true, MovedOn: true,
		Text: "The state of the thread does not allow the message (§4)."},
	{Code: CodePayloadTooLarge, Status: 413, OfMessage: true,
		Text: "The body is larger than the relay takes."},
	{Code: CodeUnsupportedMedia, Status: 415,
		Text: "The request has a Content-Encoding."},
	{Code: CodeRateLimited, Status: 429, OfMessage: true, Retryable: true,
		Text: "A limit is reached, which `details.limit` names. The header `Retry-After` says when to try again."},
	{Code: CodeInternal, Status: 500, Retryable: true,
		Text: "The relay failed. Its log has the reason."},
	{Code: CodeUnavailable, Status: 503, Retryable: true,
		Text: "The disk is full or failed, the database is busy, or the relay shuts down. `Retry-After` says when to try again."},
}

// Codes returns every Code with what the protocol says about it.
func Codes() []CodeInfo { return slices.Clone(codeTable) }

// Info returns the row of c. For a code that is not in the table, it is a row with the status 500 and nothing else.
func (c Code) Info() CodeInfo {
	for _, row := range codeTable {
		if row.Code == c {
			return row
		}
	}
	return CodeInfo{Code: c, Status: 500}
}

// Retryable reports whether the same request, sent again later byte for byte, may succeed.
func (c Code) Retryable() bool { return c.Info().Retryable }
