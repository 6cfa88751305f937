"""Sample rows of the shop; rows that are there already stay as they are."""

from decimal import Decimal

from shop.models import Order, Stock

ORDERS = [
    (1001, "Ada Lovelace", "129.00"),
    (1002, "Grace Hopper", "64.50"),
    (1003, "Alan Turing", "18.20"),
    (1004, "Katherine Johnson", "342.00"),
]
STOCK = [
    ("kettle", "Kettle", 12),
    ("lamp", "Desk lamp", 3),
    ("notebook", "Notebook", 40),
]


def seed() -> None:
    """Make the orders and the stock of the example."""
    for number, customer, amount in ORDERS:
        Order.objects.get_or_create(pk=number, defaults={"customer": customer, "amount": Decimal(amount)})
    for sku, name, quantity in STOCK:
        Stock.objects.get_or_create(sku=sku, defaults={"name": name, "quantity": quantity})
