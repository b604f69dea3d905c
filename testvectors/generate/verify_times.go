package main

const (
	late   = "The ts is five minutes or more before the relay's clock."
	early  = "The ts is five minutes or more after the relay's clock."
	over   = "The relay's clock has reached ts + ttl."
	noTime = "The ts is no RFC 3339 date-time as this protocol takes it: "
)

// timeForms are spellings of ts. All accepted ones are within five minutes of noon.
var timeForms = []struct{ name, ts, code, reason string }{
	{"ts-milliseconds", `"2026-02-02T12:00:00.000Z"`, "", ""},
	{"ts-one-digit-fraction", `"2026-02-02T12:00:00.5Z"`, "", ""},
	{"ts-nine-digit-fraction", `"2026-02-02T12:00:00.123456789Z"`, "", ""},
	{"ts-offset", `"2026-02-02T20:00:00+08:00"`, "", ""},
	{"ts-offset-negative", `"2026-02-02T06:30:00-05:30"`, "", ""},
	{"ts-offset-zero", `"2026-02-02T12:00:00+00:00"`, "", ""},
	{"ts-offset-minus-zero", `"2026-02-02T12:00:00-00:00"`, "", ""},
	{"ts-offset-largest", `"2026-02-03T11:59:00+23:59"`, "", ""},
	{"ts-fraction-and-offset", `"2026-02-02T20:00:00.25+08:00"`, "", ""},
	{"ts-missing", "", badRequest, "There is no ts."},
	{"ts-null", "null", badRequest, "The ts is no string."},
	{"ts-seconds-number", "1770033600", badRequest, "The ts is no string."},
	{"ts-milliseconds-number", "1770033600000", badRequest, "The ts is no string."},
	{"ts-seconds-string", `"1770033600"`, badRequest, noTime + "it counts seconds."},
	{"ts-empty", `""`, badRequest, noTime + "it is empty."},
	{"ts-date-only", `"2026-02-02"`, badRequest, noTime + "there is no time."},
	{"ts-no-seconds", `"2026-02-02T12:00Z"`, badRequest, noTime + "there are no seconds."},
	{"ts-no-offset", `"2026-02-02T12:00:00"`, badRequest, noTime + "there is no offset."},
	{"ts-lower-case-t", `"2026-02-02t12:00:00Z"`, badRequest, noTime + "T is in upper case."},
	{"ts-lower-case-z", `"2026-02-02T12:00:00z"`, badRequest, noTime + "Z is in upper case."},
	{"ts-space-for-t", `"2026-02-02 12:00:00Z"`, badRequest, noTime + "a T stands between date and time."},
	{"ts-leading-space", `" 2026-02-02T12:00:00Z"`, badRequest, noTime + "a space stands in front."},
	{"ts-trailing-space", `"2026-02-02T12:00:00Z "`, badRequest, noTime + "a space follows."},
	{"ts-trailing-line-feed", `"2026-02-02T12:00:00Z\n"`, badRequest, noTime + "a line feed follows."},
	{"ts-comma", `"2026-02-02T12:00:00,5Z"`, badRequest, noTime + "a comma stands before the fraction."},
	{"ts-empty-fraction", `"2026-02-02T12:00:00.Z"`, badRequest, noTime + "the fraction is empty."},
	{"ts-ten-digit-fraction", `"2026-02-02T12:00:00.1234567890Z"`, badRequest, noTime + "the fraction has ten digits."},
	{"ts-one-digit-hour", `"2026-02-02T9:00:00Z"`, badRequest, noTime + "the hour has one digit."},
	{"ts-one-digit-month", `"2026-2-02T12:00:00Z"`, badRequest, noTime + "the month has one digit."},
	{"ts-five-digit-year", `"12026-02-02T12:00:00Z"`, badRequest, noTime + "the year has five digits."},
	{"ts-signed-year", `"+2026-02-02T12:00:00Z"`, badRequest, noTime + "the year has a sign."},
	{"ts-hour-24", `"2026-02-01T24:00:00Z"`, badRequest, noTime + "there is no hour 24."},
	{"ts-minute-60", `"2026-02-02T11:60:00Z"`, badRequest, noTime + "there is no minute 60."},
	{"ts-second-60", `"2026-02-02T11:59:60Z"`, badRequest, noTime + "there was no leap second."},
	{"ts-month-13", `"2026-13-02T12:00:00Z"`, badRequest, noTime + "there is no month 13."},
	{"ts-day-0", `"2026-02-00T12:00:00Z"`, badRequest, noTime + "there is no day 0."},
	{"ts-february-29", `"2026-02-29T12:00:00Z"`, badRequest, noTime + "2026 is no leap year."},
	{"ts-april-31", `"2026-04-31T12:00:00Z"`, badRequest, noTime + "April has 30 days."},
	{"ts-offset-24", `"2026-02-03T12:00:00+24:00"`, badRequest, noTime + "an offset is below 24 hours."},
	{"ts-offset-minute-60", `"2026-02-02T13:00:00+00:60"`, badRequest, noTime + "an offset's minutes are below 60."},
	{"ts-offset-no-colon", `"2026-02-02T20:00:00+0800"`, badRequest, noTime + "an offset has a colon."},
	{"ts-offset-hours-only", `"2026-02-02T20:00:00+08"`, badRequest, noTime + "an offset has minutes."},
	{"ts-offset-minus-sign", "\"2026-02-02T04:00:00\u221208:00\"", badRequest, noTime + "U+2212 is no hyphen-minus."},
	{"ts-z-and-offset", `"2026-02-02T12:00:00Z+00:00"`, badRequest, noTime + "Z and an offset."},
	{"ts-weekday", `"Mon, 02 Feb 2026 12:00:00 GMT"`, badRequest, noTime + "it is an HTTP date."},
	{"ts-full-width-digits", "\"\uff12\uff10\uff12\uff16-02-02T12:00:00Z\"", badRequest, noTime + "its digits are not ASCII."},
}

// clocks are cases with a ts and a ttl at a certain time on the relay's clock.
var clocks = []struct{ name, now, ts, meta, code, reason string }{
	{"window-past-inside", noon, "2026-02-02T11:55:00.001Z", `{"ttl":600}`, "", ""},
	{"window-past-edge", noon, "2026-02-02T11:55:00Z", `{"ttl":600}`, stale, late},
	{"window-past-outside", noon, "2026-02-02T11:54:59.999Z", `{"ttl":600}`, stale, late},
	{"window-past-edge-offset", noon, "2026-02-02T19:55:00+08:00", `{"ttl":600}`, stale, late},
	{"window-past-nanosecond-inside", noon, "2026-02-02T11:55:00.000000001Z", `{"ttl":600}`, "", ""},
	{"window-future-inside", noon, "2026-02-02T12:04:59.999Z", `{"ttl":600}`, "", ""},
	{"window-future-edge", noon, "2026-02-02T12:05:00Z", `{"ttl":600}`, stale, early},
	{"window-future-outside", noon, "2026-02-02T12:05:00.001Z", `{"ttl":600}`, stale, early},
	{"window-future-nanosecond-inside", noon, "2026-02-02T12:04:59.999999999Z", `{"ttl":600}`, "", ""},
	{"window-clock-of-the-year-2030", "2030-01-01T00:00:00Z", "2029-12-31T23:59:00Z", `{"ttl":600}`, "", ""},
	{"window-clock-moved-on", "2026-02-02T12:06:00Z", "2026-02-02T12:00:00Z", `{"ttl":86400}`, stale, late},
	{"window-year-9999", noon, "9999-12-31T23:59:59Z", `{"ttl":600}`, stale, early},
	{"window-year-0001", noon, "0001-01-01T00:00:00Z", `{"ttl":600}`, stale, late},
	{"expired-edge", "2026-02-02T12:00:10Z", "2026-02-02T12:00:00Z", `{"ttl":10}`, expired, over},
	{"expired-a-millisecond-before", "2026-02-02T12:00:09.999Z", "2026-02-02T12:00:00Z", `{"ttl":10}`, "", ""},
	{"expired-a-millisecond-after", "2026-02-02T12:00:10.001Z", "2026-02-02T12:00:00Z", `{"ttl":10}`, expired, over},
	{"expired-long-ago", "2026-02-02T12:04:00Z", "2026-02-02T12:00:00Z", `{"ttl":1}`, expired, over},
	{"expired-not-with-ttl-spelled-1e1", "2026-02-02T12:00:09Z", "2026-02-02T12:00:00Z", `{"ttl":1e1}`, "", ""},
	{"expired-with-ttl-spelled-1e1", "2026-02-02T12:00:10Z", "2026-02-02T12:00:00Z", `{"ttl":1e1}`, expired, over},
	{"default-ttl-holds-4m59s", "2026-02-02T12:04:59Z", "2026-02-02T12:00:00Z", "{}", "", ""},
	{"default-ttl-without-meta", "2026-02-02T12:04:59Z", "2026-02-02T12:00:00Z", "", "", ""},
}
