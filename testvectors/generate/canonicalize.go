package main

import (
	"slices"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

func canonicalizations() (vectors []testvectors.CanonicalizeVector) {
	for _, c := range slices.Concat(canonicalNumbers, canonicalTexts) {
		vectors = append(vectors, testvectors.CanonicalizeVector{Name: c.name, Input: []byte(c.input),
			Expect: testvectors.Accept, Output: []byte(c.output)})
	}
	for _, c := range notCanonical {
		vectors = append(vectors, testvectors.CanonicalizeVector{Name: c.name, Input: []byte(c.input),
			Expect: testvectors.Reject, Reason: c.reason})
	}
	return vectors
}

// canonicalNumbers are numbers and their ECMAScript forms. Most are from RFC 8785, appendix B.
var canonicalNumbers = []struct{ name, input, output string }{
	{"number-zero", "0", "0"},
	{"number-minus-zero", "-0", "0"},
	{"number-minus-zero-fraction", "-0.0e-7", "0"},
	{"number-one", "1.0", "1"},
	{"number-exponent", "3e2", "300"},
	{"number-exponent-plus", "3E+2", "300"},
	{"number-exponent-zeros", "3e0002", "300"},
	{"number-exponent-minus", "30000e-2", "300"},
	{"number-trailing-zeros", "4.50", "4.5"},
	{"number-tenth", "0.1", "0.1"},
	{"number-negative", "-1.5", "-1.5"},
	{"number-long-tenth", "0.1000000000000000055511151231257827021181583404541015625", "0.1"},
	{"number-third", "333333333.33333329", "333333333.3333333"},
	{"number-nearby", "333333333.33333325", "333333333.33333325"},
	{"number-2e-3", "2e-3", "0.002"},
	{"number-1e-6", "1e-6", "0.000001"},
	{"number-below-1e-6", "0.000000999999999999999", "9.99999999999999e-7"},
	{"number-1e-7", "0.0000001", "1e-7"},
	{"number-1e-27", "0.000000000000000000000000001", "1e-27"},
	{"number-negative-small", "-0.0000033333333333333333", "-0.0000033333333333333333"},
	{"number-1e20", "1e20", "100000000000000000000"},
	{"number-below-1e21", "999999999999999900000", "999999999999999900000"},
	{"number-just-below-1e21", "999999999999999934463", "999999999999999900000"},
	{"number-1e21", "1e21", "1e+21"},
	{"number-1e21-digits", "1000000000000000000000", "1e+21"},
	{"number-1e23", "1e23", "1e+23"},
	{"number-1e30", "1E30", "1e+30"},
	{"number-9.999e22", "9.999999999999997e22", "9.999999999999997e+22"},
	{"number-largest-integer", "9007199254740992", "9007199254740992"},
	{"number-beyond-2-53", "9007199254740993", "9007199254740992"},
	{"number-int64-max", "9223372036854775807", "9223372036854776000"},
	{"number-int64-min", "-9223372036854775808", "-9223372036854776000"},
	{"number-uint64-max", "18446744073709551615", "18446744073709552000"},
	{"number-2-68", "295147905179352830000", "295147905179352830000"},
	{"number-largest", "1.7976931348623157e308", "1.7976931348623157e+308"},
	{"number-rounds-to-largest", "1.7976931348623158e308", "1.7976931348623157e+308"},
	{"number-smallest", "5e-324", "5e-324"},
	{"number-smallest-normal", "2.2250738585072014e-308", "2.2250738585072014e-308"},
	{"number-underflow", "1e-400", "0"},
	{"number-underflow-negative", "-1e-400", "0"},
	{"number-subnormal", "1e-320", "1e-320"},
	{"number-largest-subnormal", "2.2250738585072011e-308", "2.225073858507201e-308"},
	{"number-between-subnormal-and-normal", "2.2250738585072012e-308", "2.2250738585072014e-308"},
	{"number-half-of-smallest", "2.4703282292062327e-324", "0"},
	{"number-above-half-of-smallest", "2.4703282292062328e-324", "5e-324"},
	{"number-half-between-two", "9007199254740993.00000000000000000000000000000", "9007199254740992"},
	{"number-above-half-between-two", "9007199254740993.00000000000000000000000000001", "9007199254740994"},
	{"number-900-digits", strings.Repeat("9", 900) + "e-900", "1"},
	{"number-5000-zeros", "1" + strings.Repeat("0", 5000) + "e-5000", "1"},
	{"number-5000-zeros-behind-the-point", "0." + strings.Repeat("0", 5000) + "1e5000", "0.1"},
	{"number-round-to-even", "1424953923781206.25", "1424953923781206.2"},
	{"number-list", "[56.0, 1e-3 ,1e+3]", "[56,0.001,1000]"},
}

var canonicalTexts = []struct{ name, input, output string }{
	{"null", "null", "null"},
	{"true", " true ", "true"},
	{"false", "false\n", "false"},
	{"white-space", " \t\r\n{ \"a\" : [ 1 , 2 ] }\r\n", `{"a":[1,2]}`},
	{"empty-object", "{ }", "{}"},
	{"empty-list", "[ ]", "[]"},
	{"empty-string", `""`, `""`},
	{"empty-name", `{"b":1,"":2}`, `{"":2,"b":1}`},
	{"sort", `{"b":1,"a":2,"C":3,"10":4,"9":5}`, `{"10":4,"9":5,"C":3,"a":2,"b":1}`},
	{"sort-prefix", `{"aa":1,"a":2,"ab":3}`, `{"a":2,"aa":1,"ab":3}`},
	{"sort-nested", `{"b":{"d":1,"c":2},"a":[{"f":1,"e":2}]}`, `{"a":[{"e":2,"f":1}],"b":{"c":2,"d":1}}`},
	{"sort-keeps-lists", `[3,1,2]`, `[3,1,2]`},
	{"sort-escaped-names", `{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
	{"sort-control-character", "{\"a\":1,\"\\u0001\":2,\"\\n\":3}", "{\"\\u0001\":2,\"\\n\":3,\"a\":1}"},
	{"sort-surrogates-before-ff", "{\"\uff61\":1,\"\U0001f600\":2}", "{\"\U0001f600\":2,\"\uff61\":1}"},
	{"sort-surrogates-before-e000", "{\"\ue000\":1,\"\U00010000\":2}", "{\"\U00010000\":2,\"\ue000\":1}"},
	{"sort-surrogates-after-d7ff", "{\"\U0010ffff\":1,\"\ud7ff\":2}", "{\"\ud7ff\":2,\"\U0010ffff\":1}"},
	{"sort-surrogates-among-themselves", "{\"\U0001f601\":1,\"\U0001f600\":2}", "{\"\U0001f600\":2,\"\U0001f601\":1}"},
	{"sort-escaped-surrogates", `{"\uff61":1,"\ud83d\ude00":2}`, "{\"\U0001f600\":2,\"\uff61\":1}"},
	{"sort-rfc8785", `{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",` +
		`"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`,
		"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"\u00f6\":\"Latin Small Letter O With Diaeresis\"," +
			"\"\u20ac\":\"Euro Sign\",\"\U0001f600\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
	{"no-normalization", "{\"e\u0301\":1,\"\u00e9\":2}", "{\"e\u0301\":1,\"\u00e9\":2}"},
	{"case-matters", `{"a":1,"A":2}`, `{"A":2,"a":1}`},
	{"same-name-deeper", `{"a":{"a":{"a":1}}}`, `{"a":{"a":{"a":1}}}`},
	{"same-name-in-siblings", `[{"a":1},{"a":2}]`, `[{"a":1},{"a":2}]`},
	{"escape-short-forms", `"\u0008\u0009\u000a\u000c\u000d\u0022\u005c"`, `"\b\t\n\f\r\"\\"`},
	{"escape-solidus", `"a\/b"`, `"a/b"`},
	{"escape-lower-case-hex", `"\u001F\u000B\u0000"`, `"\u001f\u000b\u0000"`},
	{"escape-needless", `"\u0041\u00e9\u4f60"`, "\"A\u00e9\u4f60\""},
	{"escape-not-html", `"\u003c\u003e\u0026\u0027"`, `"<>&'"`},
	{"escape-not-delete", `"\u007f"`, "\"\x7f\""},
	{"escape-not-c1", `"\u0085"`, "\"\u0085\""},
	{"escape-not-line-separators", `"\u2028\u2029"`, "\"\u2028\u2029\""},
	{"escape-not-bom", `"\ufeff"`, "\"\ufeff\""},
	{"escape-surrogate-pair", `"\ud83d\uDE00"`, "\"\U0001f600\""},
	{"escape-backslashes", `"\\\\\""`, `"\\\\\""`},
	{"noncharacter-ffff", `"\uffff\ufffe"`, "\"\uffff\ufffe\""},
	{"noncharacter-fdd0", "\"\ufdd0\"", "\"\ufdd0\""},
	{"noncharacter-10ffff", `"\udbff\udfff"`, "\"\U0010ffff\""},
	{"noncharacter-raw", "\"\uffff\U0001ffff\"", "\"\uffff\U0001ffff\""},
	{"replacement-character", "\"\ufffd\"", "\"\ufffd\""},
	{"private-use", "\"\ue000\"", "\"\ue000\""},
	{"chinese", "{\"\u8bd1\u6587\":\"\u4f60\u597d\uff0c\u4e16\u754c\"}", "{\"\u8bd1\u6587\":\"\u4f60\u597d\uff0c\u4e16\u754c\"}"},
	{"right-to-left", "\"\u05d0\u202e\"", "\"\u05d0\u202e\""},
	{"brackets-in-strings", `["]","}","{\"","[,:"]`, `["]","}","{\"","[,:"]`},
	{"name-proto", `{"constructor":1,"__proto__":2}`, `{"__proto__":2,"constructor":1}`},
	{"depth-60", strings.Repeat("[", 60) + strings.Repeat("]", 60), strings.Repeat("[", 60) + strings.Repeat("]", 60)},
}
