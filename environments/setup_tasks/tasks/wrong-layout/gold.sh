cp -r repo/Inventory-master repo/inventory
