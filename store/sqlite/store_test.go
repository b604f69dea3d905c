package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest"
)

// openStore is a storetest.Opener.
func openStore(ctx context.Context, place string, policy relay.Policy) (relay.Store, error) {
	return sqlite.Open(ctx, filepath.Join(place, "agora.db"), sqlite.Options{Policy: policy, Reserve: 1 << 16})
}

func TestStore(t *testing.T) { storetest.Test(t, openStore) }

func TestRemover(t *testing.T) { storetest.TestRemover(t, openStore) }

func TestLogStore(t *testing.T) { storetest.TestLog(t, openStore) }
