package main

import "strings"

const bodyLimit = 131072

// bodyForms are different ways to write an envelope as a body.
var bodyForms = []bodyCase{
	{"body-white-space", "", "", func(d draft) string { return " \t\r\n" + strings.ReplaceAll(d.signed(), `,"`, " ,\n\t\"") + "\n" }},
	{"body-canonical", "", "", func(d draft) string { return string(canonical([]byte(d.signed()))) }},
	{"body-escaped-names", "", "", func(d draft) string {
		return strings.NewReplacer(`"sig"`, `"\u0073ig"`, `"type"`, `"\u0074\u0079pe"`).Replace(d.signed())
	}},
	{"body-escaped-values", "", "", func(d draft) string {
		return strings.NewReplacer(`"REQUEST"`, `"\u0052EQUEST"`, `"echo"`, `"\u0065cho"`).Replace(d.signed())
	}},
	{"body-numbers-respelled", "", "", func(d draft) string { return strings.Replace(d.signed(), `"ttl":300`, `"ttl":3.00e+2`, 1) }},
	{"body-wrapped", "", "", func(d draft) string { return wrapped(d.signed()) }},
	{"body-wrapped-spaced-escaped", "", "", func(d draft) string { return "{ \"\\u0065nvelope\" :\n" + d.signed() + " }" }},
	{"body-wrapped-twice", badVersion, "The wrapper contains another wrapper instead of an envelope.", func(d draft) string { return wrapped(wrapped(d.signed())) }},
	{"body-wrapped-beside-another-member", badVersion, "An object with another member besides envelope is not a wrapper, and as an envelope it has no version.",
		func(d draft) string { return `{"envelope":` + d.signed() + `,"x":1}` }},
	{"body-wrapped-in-upper-case", badVersion, "Names are compared exactly, so Envelope is not a wrapper.", func(d draft) string { return `{"Envelope":` + d.signed() + `}` }},
	{"body-wrapped-in-a-string", badVersion, "The wrapper does not contain an object.", func(d draft) string { return `{"envelope":"{}"}` }},
	{"body-empty", badRequest, "There is no JSON.", func(draft) string { return "" }},
	{"body-only-white-space", badRequest, "There is no JSON.", func(draft) string { return " \n" }},
	{"body-null", badRequest, "The body is not an object.", func(draft) string { return "null" }},
	{"body-list", badRequest, "The body is not an object.", func(d draft) string { return "[" + d.signed() + "]" }},
	{"body-string", badRequest, "The body is not an object.", func(draft) string { return `"{}"` }},
	{"body-number", badRequest, "The body is not an object.", func(draft) string { return "5" }},
	{"body-byte-order-mark", badRequest, "A byte order mark comes first.", func(d draft) string { return "\ufeff" + d.signed() }},
	{"body-cut", badRequest, "The end of the body is missing.",
		func(d draft) string { return strings.TrimSuffix(d.signed(), "}") }},
	{"body-twice", badRequest, "A second object follows.", func(d draft) string { return d.signed() + d.signed() }},
	{"body-trailing-comma", badRequest, "There is a comma before the last brace.", func(d draft) string { return strings.TrimSuffix(d.signed(), "}") + ",}" }},
	{"body-trailing-nul", badRequest, "A NUL follows the object.", func(d draft) string { return d.signed() + "\x00" }},
	{"body-form-encoded", badRequest, "The body is a web form.", func(d draft) string { return "envelope=" + d.signed() }},

	{"size-at-the-limit", "", "", func(d draft) string { return padded(d, bodyLimit) }},
	{"size-one-byte-over", tooLarge, "The body has 131073 bytes.", func(d draft) string { return padded(d, bodyLimit+1) }},
	{"depth-64", "", "", func(d draft) string { return deep(d, 64).signed() }},
	{"depth-65", badRequest, "The JSON has 65 levels.", func(d draft) string { return deep(d, 65).signed() }},
	{"depth-64-with-the-wrapper", "", "", func(d draft) string { return wrapped(deep(d, 63).signed()) }},
	{"depth-65-with-the-wrapper", badRequest, "With its wrapper the JSON has 65 levels.", func(d draft) string { return wrapped(deep(d, 64).signed()) }},
	{"depth-brackets-in-strings", "", "", func(d draft) string { return d.with("x", quote(strings.Repeat("[{", 100))).signed() }},
	{"depth-65-behind-brackets-in-strings", badRequest, "The JSON has 65 levels.",
		func(d draft) string { return deep(d.with("x", `"]]]]}}}}\""`), 65).signed() }},
	{"depth-many-in-a-row", "", "", func(d draft) string { return d.with("x", "["+strings.Repeat("[],", 100)+"[]]").signed() }},

	{"noncharacters", "", "", func(d draft) string { return d.with("x", "\"\\uffff\\ufdd0\uffff\"").signed() }},
	{"other-scripts", "", "", func(d draft) string {
		return d.with("payload", "{\"request_id\":\"req_1\",\"intent\":\"echo\",\"\uff61\":1,\"\U0001f600\":2,\"\u8bd1\":\"\u6587\"}").signed()
	}},
	{"numbers-beyond-precision", "", "", func(d draft) string {
		return d.with("x", "[9007199254740993,0.1000000000000000055511151231257827]").signed()
	}},
	{"numbers-signed-as-canonical", "", "", func(d draft) string { return d.with("x", "[1.0,-0,1e21,1E-7,4.50]").signed() }},
	{"numbers-costly-1000", "", "", func(d draft) string { return numbers(d, repeated(1000, "5e-324")) }},
	{"numbers-costly-1000-and-cheap-ones", "", "", func(d draft) string {
		return numbers(d, repeated(600, "9e-308"), repeated(400, "123456789012345678"), repeated(300, "1e-307"), repeated(300, "-0e-400"),
			repeated(300, "0.0123456789012345670"))
	}},
	{"numbers-costly-in-strings", "", "", func(d draft) string { return d.with("x", quote(repeated(1001, "5e-324"))).signed() }},
	tooCostly("numbers-costly-1001", "1001 numbers are below 1e-307.", repeated(1001, "5e-324")),
	tooCostly("numbers-costly-1001-just-below", "1001 numbers are below 1e-307.", repeated(1001, "-9.9e-308")),
	tooCostly("numbers-costly-1001-underflow", "1001 numbers are below 1e-307 and not zero.", repeated(1001, "1e-400")),
	tooCostly("numbers-costly-1001-digits", "1001 numbers have 18 significant digits.", repeated(1001, "12345678901234567.8")),
	tooCostly("numbers-costly-1001-zeros-within", "1001 numbers have 18 significant digits, most of them zeros.", repeated(1001, "100000000000000001")),
	tooCostly("numbers-costly-1001-mixed", "501 numbers have 18 significant digits, and 500 others are below 1e-307.",
		repeated(501, "0.00123456789012345678"), repeated(500, "0.1e-307")),
}

// repeated returns count equal elements of a list.
func repeated(count int, number string) string { return strings.Repeat(number+",", count-1) + number }

// numbers returns the signed envelope with these numbers in a list.
func numbers(d draft, elements ...string) string {
	return d.with("x", "["+strings.Join(elements, ",")+"]").signed()
}

func tooCostly(name, reason string, elements ...string) bodyCase {
	return bodyCase{name, badRequest, reason, func(d draft) string { return numbers(d, elements...) }}
}

// padded returns the signed envelope with whitespace in front, so that it has n bytes.
func padded(d draft, n int) string {
	text := d.signed()
	return strings.Repeat(" ", n-len(text)) + text
}

// deep returns d nested to this number of levels. The envelope itself is the first level.
func deep(d draft, levels int) draft {
	return d.with("deep", strings.Repeat("[", levels-1)+strings.Repeat("]", levels-1))
}

// notIJSON are texts that are not I-JSON. They are signed as a lenient parser reads them: of two members the last one
// is taken, and invalid characters become U+FFFD.
var notIJSON = []bodyCase{
	lenientMember("duplicate-id", `"id":"msg_other"`, "The id occurs twice."),
	lenientMember("duplicate-escaped", `"\u0069d":"msg_other"`, "The id occurs twice, once with an escape."),
	lenientMember("duplicate-type", `"type":"REQUEST"`, "The type occurs twice with the same value."),
	lenientMember("duplicate-unknown", `"x":1,"x":1`, "An unknown member occurs twice."),
	lenientMember("duplicate-nested", `"x":[{"y":{"a":1,"a":2}}]`, "A name occurs twice, several levels down."),
	lenientMember("duplicate-nested-escaped", `"x":{"a":1,"\u0061":2}`, "A name occurs twice, once with an escape."),
	{"duplicate-sig", badRequest, "The signature occurs twice with the same value.", func(d draft) string {
		sig := `,"sig":` + quote(d.sig())
		return strings.TrimSuffix(d.text(), "}") + sig + sig + "}"
	}},
	{"duplicate-in-the-wrapper", badRequest, "The member envelope occurs twice in the wrapper.",
		func(d draft) string { return `{"envelope":` + d.signed() + `,"envelope":` + d.signed() + `}` }},
	lenientMember("surrogate-alone", `"x":"\ud800"`, "There is half of a surrogate pair."),
	lenientMember("surrogate-alone-in-name", `"\udc00":1`, "There is half of a surrogate pair in a name."),
	lenientMember("surrogates-swapped", `"x":"\udc00\ud800"`, "The halves of a surrogate pair are in the wrong order."),
	lenientMember("utf-8-invalid", "\"x\":\"\xff\"", "There is invalid UTF-8."),
	lenientMember("utf-8-overlong", "\"x\":\"\xc0\xaf\"", "Invalid UTF-8: an overlong form."),
	lenientMember("utf-8-surrogate", "\"x\":\"\xed\xa0\x80\"", "Invalid UTF-8: a surrogate."),
	lenientMember("utf-8-invalid-in-name", "\"x\xfe\":1", "Invalid UTF-8 in a name."),
	lenientMember("number-1e400", `"x":1e400`, "The number is too large for a double."),
	lenientMember("number-minus-1e400-nested", `"x":[{"y":-1e400}]`, "The number is too large for a double."),
	invalidValue("number-leading-zero", "01", "The number has a leading zero."),
	invalidValue("number-plus", "+1", "The number begins with a plus sign."),
	invalidValue("number-nan", "NaN", "NaN is not JSON."),
	invalidValue("literal-upper-case", "TRUE", "The literal is not in lower case."),
	invalidValue("string-raw-line-feed", "\"a\nb\"", "A control character is not escaped."),
	invalidValue("string-unknown-escape", `"\x41"`, "There is no such escape."),
	invalidValue("comment", "1/* one */", "JSON has no comments."),
}

// lenientMember adds members that only a lenient parser accepts, and signs what such a parser reads.
func lenientMember(name, members, reason string) bodyCase {
	return bodyCase{name, badRequest, reason, func(d draft) string {
		text := strings.TrimSuffix(d.text(), "}") + "," + members + "}"
		return strings.TrimSuffix(text, "}") + `,"sig":` + quote(signatureOf(d.key, canonical([]byte(text)))) + "}"
	}}
}

// invalidValue replaces a value by text that is not JSON. The envelope was signed with 1 in this place.
func invalidValue(name, text, reason string) bodyCase {
	return bodyCase{name, badRequest, reason, func(d draft) string {
		return strings.Replace(d.with("x", "1").signed(), `"x":1`, `"x":`+text, 1)
	}}
}

// threadForms test how a message names its thread.
var threadForms = []bodyCase{
	{"request-id-names-the-thread", "", "", func(d draft) string {
		return d.with("thread", "").with("payload", `{"request_id":"req_names_thread","intent":"echo"}`).signed()
	}},
	{"request-id-any-text-beside-a-thread", "", "", func(d draft) string {
		return d.with("payload", `{"request_id":"no id at all","intent":"echo"}`).signed()
	}},
	{"request-id-missing-beside-a-thread", "", "", func(d draft) string { return d.with("payload", `{"intent":"echo"}`).signed() }},
	{"request-id-128-bytes", "", "", func(d draft) string { return d.with("payload", requestID(quote(strings.Repeat("r", 128)))).signed() }},
	{"request-id-126-bytes-of-42-characters", "", "", func(d draft) string {
		return d.with("payload", requestID(quote(strings.Repeat("\u4f60", 42)))).signed()
	}},
	badRequestID("request-id-129-bytes", quote(strings.Repeat("r", 129)), "The request_id has 129 bytes."),
	badRequestID("request-id-129-bytes-of-43-characters", quote(strings.Repeat("\u4f60", 43)), "The request_id has 129 bytes."),
	badRequestID("request-id-number-beside-a-thread", "5", "The request_id is not a string."),
	badRequestID("request-id-null-beside-a-thread", "null", "The request_id is not a string."),
	badRequestID("request-id-list-beside-a-thread", `["req_1"]`, "The request_id is not a string."),
	noThread("thread-and-request-id-missing", `{"intent":"echo"}`, "Neither thread.id nor payload.request_id names a thread."),
	noThread("request-id-no-id", `{"request_id":"no id at all","intent":"echo"}`, "The request_id must name the thread, but does not have the form of an id."),
	noThread("request-id-empty", `{"request_id":"","intent":"echo"}`, "The request_id must name the thread, but is empty."),
	noThread("request-id-number", `{"request_id":5,"intent":"echo"}`, "The request_id must name the thread, but is not a string."),
	noThread("request-id-null", `{"request_id":null,"intent":"echo"}`, "The request_id must name the thread, but is not a string."),
	noThread("request-id-upper-case-name", `{"Request_Id":"req_1","intent":"echo"}`, "Names are compared exactly, so Request_Id is not request_id."),
	ofType("type-offer", "OFFER"), ofType("type-accept", "ACCEPT"), ofType("type-result", "RESULT"), ofType("type-error", "ERROR"),
	ofType("type-cancel", "CANCEL"),
	{"type-manifest", "", "", func(d draft) string {
		return d.with("type", `"MANIFEST"`).with("thread", "").with("payload", manifest).signed()
	}},
	{"type-manifest-in-a-thread", badRequest, "A MANIFEST belongs to no thread.", func(d draft) string {
		return d.with("type", `"MANIFEST"`).with("payload", manifest).signed()
	}},
}

const manifest = `{"id":"cap_echo","name":"Echo","intents":[{"id":"echo"}],"auth":{"methods":["ed25519"]}}`

func requestID(value string) string { return `{"request_id":` + value + `,"intent":"echo"}` }

func badRequestID(name, value, reason string) bodyCase {
	return bodyCase{name, badRequest, reason, func(d draft) string { return d.with("payload", requestID(value)).signed() }}
}

func noThread(name, payload, reason string) bodyCase {
	return bodyCase{name, badRequest, reason, func(d draft) string { return d.with("thread", "").with("payload", payload).signed() }}
}

// ofType returns a message of this type with a complete payload. verify.json does not test threads, so it is accepted.
func ofType(name, typ string) bodyCase {
	return bodyCase{name: name, body: func(d draft) string {
		return d.with("type", quote(typ)).with("payload", `{"request_id":"req_1","status":"success","code":"UNAVAILABLE","message":"later"}`).signed()
	}}
}
