"""How is a collection copied, brought back and checked, beside a live service?"""
