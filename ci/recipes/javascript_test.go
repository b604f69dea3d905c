//go:build javascript && unix

package recipes

import "testing"

// TestJavaScriptRecipes follows the sections with JavaScript. make js runs it. npm installs the package from its
// folder, without network.
func TestJavaScriptRecipes(t *testing.T) {
	follow(t, "js", inScripts, "npm_config_offline=true", "npm_config_audit=false", "npm_config_fund=false",
		"npm_config_update_notifier=false")
}
