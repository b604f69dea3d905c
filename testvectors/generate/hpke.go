package main

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/binary"
	"math/big"
	"math/bits"
	"slices"
)

// This is HPKE (RFC 9180) as docs/SEALING.md uses it. The ephemeral key is an argument, so the result is the same every
// time. crypto/hpke, which the vectors test, uses a random ephemeral key.

var (
	kemSuite  = []byte("KEM\x00\x20")
	hpkeSuite = []byte("HPKE\x00\x20\x00\x01\x00\x03")
)

func labeledExtract(suite, salt []byte, label string, input []byte) []byte {
	prk, err := hkdf.Extract(sha256.New, slices.Concat([]byte("HPKE-v1"), suite, []byte(label), input), salt)
	if err != nil {
		panic(err)
	}
	return prk
}

func labeledExpand(suite, prk []byte, label string, info []byte, length int) []byte {
	info = slices.Concat([]byte{byte(length >> 8), byte(length)}, []byte("HPKE-v1"), suite, []byte(label), info)
	out, err := hkdf.Expand(sha256.New, prk, string(info), length)
	if err != nil {
		panic(err)
	}
	return out
}

// sealing is the result of sealing a plaintext, with all intermediate values.
type sealing struct {
	enc, shared, key, nonce []byte
	ciphertext              []byte // without enc
}

// hpkeSeal seals a plaintext to an X25519 public key. If enc is given, it replaces the ephemeral public key. enc must
// have small order; the shared secret is then a value that everybody can compute.
func hpkeSeal(ephemeral, enc, recipient, info, aad, plaintext []byte) (s sealing) {
	private, err := ecdh.X25519().NewPrivateKey(ephemeral)
	if err != nil {
		panic(err)
	}
	public, err := ecdh.X25519().NewPublicKey(recipient)
	if err != nil {
		panic(err)
	}
	s.enc = private.PublicKey().Bytes()
	dh, err := private.ECDH(public)
	if err != nil {
		panic(err)
	}
	if enc != nil {
		s.enc, dh = enc, make([]byte, 32)
	}
	s.shared = labeledExpand(kemSuite, labeledExtract(kemSuite, nil, "eae_prk", dh), "shared_secret", slices.Concat(s.enc, recipient), 32)
	context := slices.Concat([]byte{0}, labeledExtract(hpkeSuite, nil, "psk_id_hash", nil), labeledExtract(hpkeSuite, nil, "info_hash", info))
	secret := labeledExtract(hpkeSuite, s.shared, "secret", nil)
	s.key = labeledExpand(hpkeSuite, secret, "key", context, 32)
	s.nonce = labeledExpand(hpkeSuite, secret, "base_nonce", context, 12)
	s.ciphertext = chachaPoly(s.key, s.nonce, aad, plaintext)
	return s
}

// chachaPoly encrypts with AEAD_CHACHA20_POLY1305 (RFC 8439 §2.8).
func chachaPoly(key, nonce, aad, plaintext []byte) []byte {
	ciphertext := make([]byte, len(plaintext))
	for i := 0; i < len(plaintext); i += 64 {
		end := min(i+64, len(plaintext))
		subtle.XORBytes(ciphertext[i:end], plaintext[i:end], chachaBlock(key, nonce, uint32(1+i/64)))
	}
	fill := func(data []byte) []byte { return append(slices.Clone(data), make([]byte, -len(data)&15)...) }
	lengths := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(len(aad))), uint64(len(ciphertext)))
	tag := poly1305(chachaBlock(key, nonce, 0)[:32], slices.Concat(fill(aad), fill(ciphertext), lengths))
	return append(ciphertext, tag...)
}

// chachaBlock returns one block of the ChaCha20 key stream (RFC 8439 §2.3).
func chachaBlock(key, nonce []byte, counter uint32) []byte {
	var state [16]uint32
	head := slices.Concat([]byte("expand 32-byte k"), key, binary.LittleEndian.AppendUint32(nil, counter), nonce)
	for i := range state {
		state[i] = binary.LittleEndian.Uint32(head[4*i:])
	}
	x := state
	quarter := func(a, b, c, d int) {
		for _, step := range [][4]int{{a, b, d, 16}, {c, d, b, 12}, {a, b, d, 8}, {c, d, b, 7}} {
			x[step[0]] += x[step[1]]
			x[step[2]] = bits.RotateLeft32(x[step[2]]^x[step[0]], step[3])
		}
	}
	for range 10 {
		for i := range 4 {
			quarter(i, 4+i, 8+i, 12+i)
		}
		for i := range 4 {
			quarter(i, 4+(i+1)%4, 8+(i+2)%4, 12+(i+3)%4)
		}
	}
	var out []byte
	for i := range x {
		out = binary.LittleEndian.AppendUint32(out, x[i]+state[i])
	}
	return out
}

// poly1305 returns the authentication tag of RFC 8439 §2.5. The length of message must be a multiple of 16 bytes.
func poly1305(key, message []byte) []byte {
	number := func(little []byte) *big.Int {
		swapped := slices.Clone(little)
		slices.Reverse(swapped)
		return new(big.Int).SetBytes(swapped)
	}
	clamp := unhex("ffffff0ffcffff0ffcffff0ffcffff0f")
	r := slices.Clone(key[:16])
	for i := range r {
		r[i] &= clamp[i]
	}
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 130), big.NewInt(5))
	sum := new(big.Int)
	for block := range slices.Chunk(message, 16) {
		sum.Add(sum, number(append(slices.Clone(block), 1)))
		sum.Mul(sum, number(r)).Mod(sum, p)
	}
	sum.Add(sum, number(key[16:])).Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128))
	tag := sum.FillBytes(make([]byte, 16))
	slices.Reverse(tag)
	return tag
}

// x25519Private returns the scalar that RFC 8032 §5.1.5 derives from a seed.
func x25519Private(seed []byte) []byte {
	digest := sha512.Sum512(seed)
	scalar := digest[:32]
	scalar[0] &= 248
	scalar[31] = scalar[31]&127 | 64
	return scalar
}

// x25519Public returns the public key of a private key. Unlike the code under test, it does not convert an Ed25519
// point.
func x25519Public(private []byte) []byte {
	key, err := ecdh.X25519().NewPrivateKey(private)
	if err != nil {
		panic(err)
	}
	return key.PublicKey().Bytes()
}
