package envelope

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"math/big"

	"github.com/gowebpki/jcs"
)

// MaxCostlyNumbers is the maximum number of costly numbers in one JSON text (PROTOCOL §1).
const MaxCostlyNumbers = 1000

// A number is costly if it has more than maxCheapDigits significant digits, or if it is not zero and the exponent of
// its first significant digit is below minCheapExponent. Parsers need up to 50 µs for a costly number, and 100 ns for
// any other number. The rule depends only on the text, so every implementation counts the same. A canonical form never
// has more costly numbers than its original text.
const (
	maxCheapDigits   = 17
	minCheapExponent = -307
)

// number is the text of a JSON number, and the positions of its significant digits.
type number struct {
	text        []byte
	first, last int // indexes in text of the first and the last digit that is not 0; first < 0: the number is zero
	digits      int // the number of digits from first to last
	exponent    int // the exponent of the first significant digit; for 0.00123 it is -3
}

func (n number) costly() bool {
	return n.first >= 0 && (n.digits > maxCheapDigits || n.exponent < minCheapExponent)
}

// farExponent replaces all larger exponents. No body has enough digits to bring such a number back into range.
const farExponent = 1 << 30

// scanNumber parses a JSON number. ok is false if text is not a JSON number.
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
	n.locateDigits(whole, point, mantissa, exponent)
	return n, true
}

// scanExponent parses the exponent of a number. text is empty if the number has no exponent.
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

// locateDigits finds the significant digits of n. The digits of n are at the indexes from whole up to mantissa, and the
// decimal point is at point.
func (n *number) locateDigits(whole, point, mantissa, exponent int) {
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

// enoughDigits is larger than the number of significant digits that can affect the rounding to a double.
const enoughDigits = 800

// double returns the double nearest to n, ties to even. It returns an infinity if n is too large. It is used instead of
// strconv.ParseFloat, which takes ten times as long for costly numbers and is wrong for some texts of more than 800
// digits. (Go 1.26 parses 900 nines with e-900 as 1e-100.)
func (n number) double() float64 {
	switch {
	case n.first < 0, n.exponent < -330: // the smallest double is 5e-324
		return 0
	case n.exponent > 310:
		return math.Inf(1)
	}
	digits := bytes.ReplaceAll(n.text[n.first:n.last+1], []byte("."), nil)
	if len(digits) > enoughDigits {
		// One nonzero digit instead of all further digits; only their being nonzero can matter.
		digits = append(digits[:enoughDigits:enoughDigits], '1')
	}
	numerator, _ := new(big.Int).SetString(string(digits), 10) // cannot fail: the text has digits only
	denominator := big.NewInt(1)
	scale := new(big.Int)
	if shift := n.exponent - len(digits) + 1; shift >= 0 {
		numerator.Mul(numerator, scale.Exp(big.NewInt(10), big.NewInt(int64(shift)), nil))
	} else {
		denominator.Exp(big.NewInt(10), big.NewInt(int64(-shift)), nil)
	}
	// A quotient of at least 66 bits is enough for rounding, if its last bit is set whenever the division has a
	// remainder.
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

// canonical returns the RFC 8785 form of n. ok is false if n is too large for a double.
func (n number) canonical() (text string, ok bool) {
	value := n.double()
	if n.text[0] == '-' {
		value = -value
	}
	text, err := jcs.NumberToJSON(value)
	return text, err == nil
}

// numbers yields the start and the end of each number in a JSON text. If text is not JSON, it may yield other ranges.
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

// longNumber is the minimum length of numbers that are parsed with number.double even if they are not costly.
const longNumber = 100

// jcs would parse costly and long numbers with strconv. Therefore replaceCostly replaces each of them by a placeholder
// before jcs runs, and restoreCostly replaces the placeholders in the output of jcs by the canonical forms of the
// numbers. jcs parses a placeholder quickly and writes it unchanged. No other number that is left in the text has the
// exponent of a placeholder, because numbers so small are costly.
const placeholderExponent = "e-308"

func placeholder(index int) string { return fmt.Sprintf("4.%07d1%s", index, placeholderExponent) }

// replaceCostly returns text with placeholders for its costly and long numbers, and the canonical forms of these
// numbers. If text is not JSON, the returned text is not JSON either.
func replaceCostly(text []byte) (plain []byte, replaced []string, err error) {
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
		plain = append(append(plain, text[done:from]...), placeholder(len(replaced))...)
		replaced = append(replaced, canonical)
		done = to
	}
	if len(replaced) == 0 {
		return text, nil, nil
	}
	return append(plain, text[done:]...), replaced, nil
}

// restoreCostly replaces the placeholders in canonical by the numbers that replaceCostly returned.
func restoreCostly(canonical []byte, replaced []string) []byte {
	if len(replaced) == 0 {
		return canonical
	}
	out, done := make([]byte, 0, len(canonical)), 0
	for from, to := range numbers(canonical) {
		if !bytes.HasSuffix(canonical[from:to], []byte(placeholderExponent)) {
			continue
		}
		index := 0
		for _, c := range canonical[from+len("4.") : to-len("1"+placeholderExponent)] {
			index = index*10 + int(c-'0')
		}
		out = append(append(out, canonical[done:from]...), replaced[index]...)
		done = to
	}
	return append(out, canonical[done:]...)
}
