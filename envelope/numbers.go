package envelope

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"math/big"

	"github.com/gowebpki/jcs"
)

// MaxCostlyNumbers is how many costly numbers one JSON text may have (PROTOCOL §1).
const MaxCostlyNumbers = 1000

// A number is costly if it has more than maxCheapDigits significant digits, or if it is not zero and the exponent of
// its first significant digit is below minCheapExponent. Parsers need up to 50 µs for a costly number, and 100 ns for
// any other. The rule depends on the text only, so every implementation counts the same. A canonical form never has
// more costly numbers than its original text.
const (
	maxCheapDigits   = 17
	minCheapExponent = -307
)

// number is the text of a JSON number, and where its significant digits are.
type number struct {
	text        []byte
	first, last int // indexes in text of the first and the last digit that is not 0; first < 0: the number is zero
	digits      int // how many digits there are from first to last
	exponent    int // the exponent of the first significant digit; that of 0.00123 is -3
}

func (n number) costly() bool {
	return n.first >= 0 && (n.digits > maxCheapDigits || n.exponent < minCheapExponent)
}

// farExponent replaces all larger exponents. No body has enough digits to bring such a number back into range.
const farExponent = 1 << 30

// scanNumber parses a JSON number. ok is false if text is not one.
func scanNumber(text []byte) (n number, ok bool) {
	n = number{text: text, first: -1}
	i := 0
	if i < len(text) && text[i] == '-' {
		i++
	}
	whole := i
	for i < len(text) && digit(text[i]) {
		i++
	}
	if i == whole || text[whole] == '0' && i > whole+1 {
		return n, false
	}
	point := i
	if i < len(text) && text[i] == '.' {
		for i++; i < len(text) && digit(text[i]); i++ {
		}
		if i == point+1 {
			return n, false
		}
	}
	mantissa := i
	exponent, ok := scanExponent(text[i:])
	if !ok {
		return n, false
	}
	n.mark(whole, point, mantissa, exponent)
	return n, true
}

// scanExponent parses the exponent of a number, which may be missing.
func scanExponent(text []byte) (exponent int, ok bool) {
	if len(text) == 0 {
		return 0, true
	}
	if text[0] != 'e' && text[0] != 'E' {
		return 0, false
	}
	text = text[1:]
	negative := len(text) > 0 && text[0] == '-'
	if negative || len(text) > 0 && text[0] == '+' {
		text = text[1:]
	}
	for _, c := range text {
		if !digit(c) {
			return 0, false
		}
		exponent = min(exponent*10+int(c-'0'), farExponent)
	}
	if negative {
		exponent = -exponent
	}
	return exponent, len(text) > 0
}

// mark finds the significant digits of n. Its digits are from whole to mantissa, with the decimal point at point.
func (n *number) mark(whole, point, mantissa, exponent int) {
	for i := whole; i < mantissa; i++ {
		if c := n.text[i]; c != '0' && c != '.' {
			if n.first < 0 {
				n.first = i
			}
			n.last = i
		}
	}
	if n.first < 0 {
		return
	}
	n.digits = n.last - n.first + 1
	if n.first < point && point < n.last {
		n.digits--
	}
	n.exponent = exponent + point - n.first
	if n.first < point {
		n.exponent--
	}
}

// enoughDigits is more than the number of significant digits that can decide to which double a number is rounded.
const enoughDigits = 800

// double returns the double nearest to n, ties to even; an infinity if n is too large. strconv.ParseFloat takes ten
// times as long for costly numbers, and is wrong for some texts of more than 800 digits (Go 1.26 parses 900 nines with
// e-900 as 1e-100).
func (n number) double() float64 {
	switch {
	case n.first < 0, n.exponent < -330: // the smallest double is 5e-324
		return 0
	case n.exponent > 310:
		return math.Inf(1)
	}
	digits := bytes.ReplaceAll(n.text[n.first:n.last+1], []byte("."), nil)
	if len(digits) > enoughDigits {
		digits = append(digits[:enoughDigits:enoughDigits], '1') // stands for all further digits
	}
	numerator, _ := new(big.Int).SetString(string(digits), 10) // these are digits
	denominator := big.NewInt(1)
	scale := new(big.Int)
	if shift := n.exponent - len(digits) + 1; shift >= 0 {
		numerator.Mul(numerator, scale.Exp(big.NewInt(10), big.NewInt(int64(shift)), nil))
	} else {
		denominator.Exp(big.NewInt(10), big.NewInt(int64(-shift)), nil)
	}
	// A quotient of at least 66 bits is enough for rounding, if its last bit is set when the division has a remainder.
	shift := 66 - numerator.BitLen() + denominator.BitLen()
	if shift >= 0 {
		numerator.Lsh(numerator, uint(shift))
	} else {
		denominator.Lsh(denominator, uint(-shift))
	}
	quotient, rest := new(big.Int).QuoRem(numerator, denominator, scale)
	if rest.Sign() != 0 {
		quotient.SetBit(quotient, 0, 1)
	}
	value := new(big.Float).SetInt(quotient)
	nearest, _ := value.SetMantExp(value, -shift).Float64()
	return nearest
}

// canonical returns the RFC 8785 form of n; ok is false if n is too large for a double.
func (n number) canonical() (text string, ok bool) {
	value := n.double()
	if n.text[0] == '-' {
		value = -value
	}
	text, err := jcs.NumberToJSON(value)
	return text, err == nil
}

// numbers yields the start and the end of each number in a JSON text. If text is not JSON, it may yield other places.
func numbers(text []byte) iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		inString := false
		for i := 0; i < len(text); i++ {
			switch c := text[i]; {
			case inString && c == '\\':
				i++
			case c == '"':
				inString = !inString
			case inString:
			case digit(c) || c == '-':
				from := i
				for i++; i < len(text) && (digit(text[i]) || bytes.IndexByte([]byte("+-.eE"), text[i]) >= 0); i++ {
				}
				if !yield(from, i) {
					return
				}
				i--
			}
		}
	}
}

// longNumber is the length from which numbers are parsed here even if they are not costly, see number.double.
const longNumber = 100

// jcs would parse costly and long numbers with strconv. So takeCostly replaces each of them by a stand-in before jcs
// runs, and putCostly replaces the stand-ins in the output of jcs by the canonical forms of the numbers. jcs parses a
// stand-in quickly and writes it unchanged. No other number in the text has its exponent, because numbers so small are
// costly.
const standInExponent = "e-308"

func standIn(index int) string { return fmt.Sprintf("4.%07d1%s", index, standInExponent) }

// takeCostly returns text with stand-ins for its costly and long numbers, and the canonical forms of these numbers. If
// text is not JSON, the returned text is not JSON either.
func takeCostly(text []byte) (plain []byte, taken []string, err error) {
	done, costly := 0, 0
	for from, to := range numbers(text) {
		n, ok := scanNumber(text[from:to])
		if !ok || !n.costly() && len(n.text) < longNumber {
			continue
		}
		if n.costly() {
			costly++
		}
		if costly > MaxCostlyNumbers {
			return nil, nil, Errorf(CodeInvalidRequest, "the JSON has more than %d numbers with more than %d significant digits "+
				"or below 1e%d; write fewer digits, or put such numbers into strings", MaxCostlyNumbers, maxCheapDigits, minCheapExponent)
		}
		canonical, ok := n.canonical()
		if !ok {
			return nil, nil, explain(text)
		}
		plain = append(append(plain, text[done:from]...), standIn(len(taken))...)
		taken = append(taken, canonical)
		done = to
	}
	if len(taken) == 0 {
		return text, nil, nil
	}
	return append(plain, text[done:]...), taken, nil
}

// putCostly replaces the stand-ins in canonical by the numbers that takeCostly has taken.
func putCostly(canonical []byte, taken []string) []byte {
	if len(taken) == 0 {
		return canonical
	}
	out, done := make([]byte, 0, len(canonical)), 0
	for from, to := range numbers(canonical) {
		if !bytes.HasSuffix(canonical[from:to], []byte(standInExponent)) {
			continue
		}
		index := 0
		for _, c := range canonical[from+len("4.") : to-len("1"+standInExponent)] {
			index = index*10 + int(c-'0')
		}
		out = append(append(out, canonical[done:from]...), taken[index]...)
		done = to
	}
	return append(out, canonical[done:]...)
}
