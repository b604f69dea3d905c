package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

const (
	sumsName      = "SHA256SUMS"      // the checksums of all other files, in the format of sha256sum
	signatureName = sumsName + ".sig" // its signature, as ssh-keygen -Y sign makes it
	signersName   = "allowed_signers" // the public key, as ssh-keygen -Y verify reads it
	signer        = "agora"           // who has signed, in signersName
	namespace     = "agora-release"   // what the key has signed for
)

// writeSums writes the checksums of all files in a folder.
func writeSums(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, entry := range entries {
		if entry.IsDir() || slices.Contains([]string{sumsName, signatureName, signersName}, entry.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(folder, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(text), entry.Name())
	}
	if err := os.Remove(filepath.Join(folder, signatureName)); err != nil && !os.IsNotExist(err) {
		return err // of other checksums
	}
	return os.WriteFile(filepath.Join(folder, sumsName), b.Bytes(), 0o644)
}

// signSums signs the checksums with a private key of SSH, which may be one that an agent of SSH has: then the file has
// its public half. It also writes the public key for those who verify.
func signSums(folder, key string) error {
	public, err := exec.Command("ssh-keygen", "-y", "-f", key).Output()
	if err != nil {
		if public, err = os.ReadFile(key); err != nil || !bytes.HasPrefix(public, []byte("ssh-")) {
			return fmt.Errorf("%s is neither a private nor a public key of SSH", key)
		}
	}
	sign := exec.Command("ssh-keygen", "-q", "-Y", "sign", "-f", key, "-n", namespace)
	var signature bytes.Buffer
	sign.Stdout = &signature
	if sign.Stdin, err = os.Open(filepath.Join(folder, sumsName)); err != nil {
		return err
	}
	if err := run(sign); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, signatureName), signature.Bytes(), 0o644); err != nil {
		return err
	}
	line := fmt.Sprintf("%s namespaces=%q %s", signer, namespace, public)
	return os.WriteFile(filepath.Join(folder, signersName), []byte(line), 0o644)
}
