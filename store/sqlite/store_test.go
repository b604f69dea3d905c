package sqlite_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest"
)

func TestStore(t *testing.T) {
	storetest.Test(t, func(ctx context.Context, place string, policy relay.Policy) (relay.Store, error) {
		return sqlite.Open(ctx, filepath.Join(place, "agora.db"), sqlite.Options{Policy: policy, Reserve: 1 << 16})
	})
}
