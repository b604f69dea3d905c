package main

// Identities and their signatures (PROTOCOL §2).
var identities = []mutant{
	{"did: low-order keys are accepted", "didkey decodePoint", "MultByCofactor()", never, ofDIDs},
	{"did: non-canonical keys are accepted", "didkey decodePoint", "belowP()", never, ofDIDs},
	{"did: Parse does not decode the point", "didkey Parse", "err ==", never, ofDIDs},
	{"did: FromPublicKey does not decode the point", "didkey FromPublicKey", "decodePoint()", never, ofDIDs},
	{"did: any length is accepted", "didkey decode", "length", without, ofDIDs},
	{"did: any codec is accepted", "didkey decode", "byte codec", without, ofDIDs + " ./envelope"},

	{"verifier: unusable keys are accepted", "didkey ParseVerifier", "decodePoint()",
		with("new(edwards25519.Point).SetBytes(v.key[:])"), ofDIDs},
	{"verifier: S may be above the group order", "didkey Verifier.Verify", "SetCanonicalBytes()",
		with("new(edwards25519.Scalar).SetUniformBytes(append(append([]byte(nil), sig[32:]...), make([]byte, 32)...))"),
		ofDIDs},
	{"verifier: the equation has the cofactor", "didkey Verifier.Verify", "bytes.Equal()",
		with(`$ || func() bool {
			p, err := new(edwards25519.Point).SetBytes(sig[:32])
			return err == nil && p.MultByCofactor(p).Equal(r.MultByCofactor(r)) == 1
		}()`), ofDIDs},
	{"verifier: R is compared as a point", "didkey Verifier.Verify", "bytes.Equal()",
		with(`$ || func() bool {
			p, err := new(edwards25519.Point).SetBytes(sig[:32])
			return err == nil && p.Equal(r) == 1
		}()`), ofDIDs},
	{"verifier: the key is not hashed", "didkey Verifier.Verify", "hash.Write() v.key", drop, ofDIDs},
	{"verifier: the cache has no limit", "didkey Verifiers.add", "cacheSize", without, ofDIDs},
}

// The form of private reads (§8).
var signedReads = []mutant{
	{"reads: a member of a token may be missing", "envelope Read.decode", "count", never, ofEnvelopes},
	{"reads: any typ is accepted", "envelope Read.decode", "form.typ !=", never, ofEnvelopes},
	{"reads: line breaks in the base64url are accepted", "envelope decodeToken", "ContainsAny()", without, ofEnvelopes},
	{"reads: other spellings of the base64url are accepted", "envelope decodeToken", "Strict()",
		with("base64.RawURLEncoding"), ofEnvelopes},
	{"reads: the signature is not verified", "envelope Read.VerifyWith", "Verify()", never, ofEnvelopes},
	{"reads: a token may have any length", "envelope decodeToken", "MaxReadToken", never, ofEnvelopes},
	{"reads: a token with many strings is canonicalized", "envelope decodeToken", "stringsIn()", without, ofEnvelopes},
	{"calls: other spellings of the hash are accepted", "envelope ParseCall", "Strict()", with("base64.RawURLEncoding"),
		ofEnvelopes},
	{"calls: line breaks in the hash are accepted", "envelope ParseCall", "EncodedLen()", without, ofEnvelopes},
}

// Envelopes (§1).
var envelopes = []mutant{
	{"json: member names in other case are accepted", "envelope decode", "EqualFold()",
		with("(name == strings.ToUpper(known))"), ofEnvelopes},
	{"json: twice as many costly numbers are accepted", "envelope replaceCostly", "costly",
		swap("> MaxCostlyNumbers", "> 2*MaxCostlyNumbers"), ofEnvelopes},
	{"json: gateways take U+0000", "envelope ParseObject", "hasNUL()", never, "./gateway/jobs -run TestBodies"},
	{"json: a backslash before u0000 hides U+0000", "envelope hasNUL", "before", set("canonical[:max(i-1, 0)]"),
		"./gateway/jobs -run TestBodies"},
	{"json: zeros count as significant digits", "envelope number.locateDigits", "digits", set("mantissa - whole"),
		ofEnvelopes},
	{"json: the remainder of a quotient is ignored", "envelope number.double", "SetBit()", swap("0, 1", "0, 0"),
		ofEnvelopes},
	{"json: the depth is not limited", "envelope canonicalize", "", swap("> MaxDepth", "> 100*MaxDepth"), ofEnvelopes},
	{"json: the canonical form may be too large", "envelope Parse", "canonical maxBytes", never, ofEnvelopes},
	{"json: a quote after two backslashes counts as escaped", "envelope stringEnd", "slashes %", with("slashes"),
		ofEnvelopes},
	{"json: a wrapper may have other members", "envelope unwrap", "end", without, ofEnvelopes},
	{"arrange: members are not sorted", "envelope arranger.sort", "SortFunc()", with("slices.Reverse(members)"),
		ofEnvelopes},
	{"arrange: duplicate names are accepted", "envelope arranger.sort", "bytes.Equal()", never, ofEnvelopes},
	{"arrange: text after the value is ignored", "envelope arrange", "end", without, ofEnvelopes},
	{"arrange: the depth is not limited", "envelope arranger.array", "", swap("> MaxDepth", "> 100*MaxDepth"),
		ofEnvelopes},
	{"arrange: an object keeps the members of its inner objects", "envelope arranger.object", "a.members",
		set("a.members"), ofEnvelopes},

	{"time: every month has 31 days", "envelope ParseTime", "time.Parse()",
		after(`if err != nil { t, err = time.Parse(time.RFC3339Nano, s[:8]+"01"+s[10:]) }`), ofEnvelopes},
	{"time: ten digits of a second are accepted", "envelope ParseTime", "digits 9", swap("9", "10"), ofEnvelopes},
	{"time: an offset of 24 hours is accepted", "envelope ParseTime", `"23"`, with(`"24"`), ofEnvelopes},
	{"ttl: a long one overflows", "envelope maxTTL", "", set("math.MaxInt64 / 10"), ofEnvelopes},
	{"ttl: 0 is accepted", "envelope Envelope.decodeMeta", "seconds", swap("< 1", "< 0"), ofEnvelopes},
	{"id: it may start with a dot", "envelope ValidID", "i >", without, ofEnvelopes},
	{"sig: another member is cut out", "envelope withoutSig", `"sig"`, with(`"id"`), ofEnvelopes},
	{"sig: other spellings are accepted", "envelope decodeSig", "Strict()", with("base64.RawURLEncoding"), ofEnvelopes},
	{"sig: it is not verified", "envelope Envelope.VerifyWith", "Verify()", never, ofEnvelopes},
	{"recipient: it need not be a key", "envelope Envelope.VerifyWith", "parse() Recipient", never, ofEnvelopes},
}

// Sealed payloads (docs/SEALING.md).
var sealing = []mutant{
	{"seal: a ciphertext may hold clear members", "envelope readSecret", "clearMembers()", without, ofEnvelopes},
	{"seal: it is not bound to the sender", "envelope Envelope.sealInfo", `"sender"`, set(`""`), ofEnvelopes},
	{"seal: it is not bound to the id", "envelope Envelope.sealInfo", `"id"`, set(`""`), ofEnvelopes},
	{"seal: it is not bound to the thread", "envelope Envelope.sealInfo", `"thread"`, set(`""`), ofEnvelopes},
	{"seal: it is not bound to the type", "envelope Envelope.sealInfo", `"type"`, set(`""`), ofEnvelopes},
	{"seal: it is not bound to the request", "envelope Envelope.sealInfo", `"request_id"`, never, ofEnvelopes},
	{"seal: an empty request_id counts as none", "envelope Envelope.sealInfo", `"request_id"`,
		when("$ && len(value) > 2"), "./testvectors -run Sealing"},
	{"seal: a payload is opened without a valid signature", "envelope Envelope.Open", "e.Verify()", without,
		ofEnvelopes},
	{"seal: an opener other than the recipient is accepted", "envelope Envelope.Open", "e.Recipient", without,
		"./testvectors -run Sealing"},
	{"seal: other spellings are accepted", "envelope Envelope.splitSealed", "EncodeToString()", without, ofEnvelopes},
	{"seal: any version is accepted", "envelope Envelope.splitSealed", "versioned", without, ofEnvelopes},
	{"seal: other clear members are accepted", "envelope Envelope.splitSealed", "",
		swap("ok = false", "add([]byte(`\"`+name+`\":`), value)"), ofEnvelopes},
	{"seal: the depth is not limited", "envelope readSecret", "", swap("> MaxDepth", "> 100*MaxDepth"), ofEnvelopes},
	{"seal: an ERROR without a message is accepted", "envelope readSecret", "message !=", with("(true || $)"),
		ofEnvelopes},
	{"seal: an ERROR with a clear message is accepted", "envelope Envelope.splitSealed", "sealedMessage",
		when(`name == "message"`), ofEnvelopes},
	{"seal: the message of an ERROR stays clear", "envelope Envelope.seal", "add() sealedMessage",
		with("add([]byte(`\"message\":`), member(e.Payload, \"message\"))"), ofEnvelopes},
	{"seal: there is no padding", "envelope sealedUnit", "", set("1"), ofEnvelopes},
	{"seal: a broadcast is sent in plain text", "envelope Draft.Sign", "d.Seal", when(`$ && d.Recipient != ""`),
		ofEnvelopes},
	{"seal: an opened payload is not canonical", "envelope Envelope.Open", "Canonicalize()",
		with("join(clear, secret), nil"), ofEnvelopes},
	{"seal: unusable keys are converted to X25519", "didkey DID.X25519", "decodePoint()",
		with("new(Verifier).minusA.SetBytes(key[:])"), ofDIDs},
	{"seal: the private key is the other half of the hash", "didkey Key.X25519", "digest", swap("[:32]", "[32:]"),
		ofDIDs},
}

// The window and the memory (§1, §3).
var window = []mutant{
	{"window: its edge is inside", "replay Window.Check", "ts.After()", with("(!ts.Before(now.Add(-w.Skew)))"), ofTime},
	{"window: it compares a difference of times", "replay Window.Check", "ts.After() ts.Before()",
		with("max(now.Sub(ts), -now.Sub(ts)) >= w.Skew"), ofTime},
	{"window: expired messages are accepted", "replay Window.Check", "w.Expires()", never, ofTime},
	{"memory: it is ten minutes", "replay DefaultMemory", "", set("10 * time.Minute"), "./relay -run NoSecond"},
	{"memory: it ends with the ttl", "replay Window.RememberUntil", "expires.After()", always, "./relay -run NoSecond"},
	{"memory: a purge removes expired ids", "store/sqlite statements.all", "s.dropEvents",
		swapSQL("WHERE forget <= ?", "WHERE expires <= ?"), "./relay -run NoSecond"},
}

// Threads (§4).
var threads = []mutant{
	{"thread: the role is not checked", "thread Thread.checkRole", "allows()", never, ofThreads},
	{"thread: a second ACCEPT is accepted", "thread Rules.Next", "row.Before",
		when("$ && !(m.Type == envelope.TypeAccept && t.State == Active)"), ofThreads},
	{"thread: ACCEPT may name an agent that did not offer", "thread Thread.accept", "Offered()", never, ofThreads},
	{"thread: a RESULT before the ACCEPT is accepted", "thread Rules.Next", "row.Before",
		when("$ && !(m.Type == envelope.TypeResult && t.State == Pending)"), ofThreads},
	{"thread: any agent's ERROR ends it", "thread Rules.Next", "withdraws()", never, ofThreads},
	{"thread: the recipient need not be a counterpart", "thread Thread.checkRole", "counterpart()", never, ofThreads},
	{"thread: the request_id is not compared", "thread Thread.checkRequestID", "t.RequestID", always, ofThreads},
	{"thread: the instant of the deadline is in time", "thread Rules.At", "now.Before()", with("!now.After(deadline)"),
		ofThreads},
	{"thread: one offer too many is accepted", "thread Rules.offer", "OffersMade", swap(">=", ">"), ofThreads},
}
